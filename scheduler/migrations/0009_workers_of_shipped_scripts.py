from django.db import migrations

from scheduler.facts.scripts import SHIPPED


def add_workers(apps, schema_editor):
    """Only to scripts whose command is that of gpucoord."""
    scripts = apps.get_model("scheduler", "ScriptDefinition")
    for facts in SHIPPED:
        if "worker" not in facts:
            continue
        for row in scripts.objects.filter(name=facts["name"], worker=[]):
            if row.argv == facts["argv"]:
                row.worker = facts["worker"]
                row.save(update_fields=["worker"])


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0008_workers_of_batches'),
    ]

    operations = [
        migrations.RunPython(add_workers, migrations.RunPython.noop),
    ]
