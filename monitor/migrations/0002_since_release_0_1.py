import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def fill(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Incidents during which a job waited, and memory held idle, were a hog's all the time."""
    incidents = apps.get_model("monitor", "Incident").objects
    rules = ("sustained", "fair_share", "memory_hog", "cpu_hog")
    found = incidents.filter(
        models.Q(rule__in=rules, waited_jobs__gt=0) | models.Q(rule="idle_held")
    )
    for row in found.only("since_at", "last_seen_at").iterator():
        row.hog_spans = [[row.since_at.timestamp(), row.last_seen_at.timestamp()]]
        row.save(update_fields=["hog_spans"])


class Migration(migrations.Migration):

    dependencies = [
        ('monitor', '0001_release_0_1'),
    ]

    operations = [
        migrations.AddField(
            model_name='processhour',
            name='memory_known_s',
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name='processminute',
            name='memory_known_s',
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name='ItemFault',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=100)),
                ('part', models.CharField(max_length=40)),
                ('item', models.CharField(max_length=200)),
                ('fault', models.CharField(max_length=200)),
                ('failures', models.PositiveIntegerField(default=1)),
                ('since_at', models.DateTimeField()),
                ('last_at', models.DateTimeField()),
                ('retry_at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('host', 'part', 'item'), name='item_fault_item')],
            },
        ),
        migrations.AddField(
            model_name='incident',
            name='hog_spans',
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.AddField(
            model_name='processuse',
            name='owner_source',
            field=models.CharField(default='unknown', max_length=10),
        ),
        migrations.AddField(
            model_name='incident',
            name='lead',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='facets', to='monitor.incident'),
        ),
        migrations.AddField(
            model_name='incident',
            name='over_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='incident',
            name='subject',
            field=models.CharField(blank=True, max_length=400),
        ),
        migrations.AlterField(
            model_name='gpuclosure',
            name='kind',
            field=models.CharField(choices=[('paused', 'paused'), ('quarantined', 'quarantined'), ('lock_file', 'lock_file')], max_length=12),
        ),
        migrations.RenameModel('Chore', 'PeriodicTask'),
        migrations.RenameModel('Tally', 'Counter'),
        migrations.RenameModel('CpuLook', 'CpuScanState'),
        migrations.AlterModelOptions(
            name='counter',
            options={},
        ),
        migrations.AlterModelOptions(
            name='cpuscanstate',
            options={'verbose_name': 'CPU scan state'},
        ),
        migrations.AlterField(
            model_name='channel',
            name='errors_at_once',
            field=models.BooleanField(default=True, help_text='Send errors during quiet hours and on free days too.'),
        ),
        migrations.AlterField(
            model_name='channel',
            name='least',
            field=models.CharField(choices=[('info', 'Info'), ('warning', 'Warning'), ('error', 'Error')], default='warning', help_text='Less severe events are not sent.', max_length=8, verbose_name='from severity'),
        ),
        migrations.AlterField(
            model_name='channel',
            name='to_owners',
            field=models.BooleanField(default=False, help_text='Send incidents by e-mail to the owner of the process instead of the receiver in the address. Requires a mail server address. The e-mail address of the user account is used.', verbose_name='to the owners'),
        ),
        migrations.AlterField(
            model_name='channel',
            name='working_days_only',
            field=models.BooleanField(default=False, help_text='Send on working days only. The policy “alerts” defines the working days.'),
        ),
        migrations.AlterField(
            model_name='exemption',
            name='rule',
            field=models.CharField(blank=True, help_text='Leave empty to exempt from all rules.', max_length=40),
        ),
    ]
