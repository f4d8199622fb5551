import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

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

    # The migrations of builds before the first release, which this one is made of.
    replaces = [
        ('scheduler', '0002_model_aliases'),
        ('scheduler', '0003_share_limit_and_owed'),
        ('scheduler', '0004_soft_limits_and_left_out'),
        ('scheduler', '0005_ports_of_attempts'),
        ('scheduler', '0006_quick_failures'),
        ('scheduler', '0007_keys_of_prompts'),
        ('scheduler', '0008_workers_of_batches'),
        ('scheduler', '0009_workers_of_shipped_scripts'),
        ('scheduler', '0010_host_forecasts'),
        ('scheduler', '0011_exclusive_approvals'),
        ('scheduler', '0012_usual_boots'),
        ('scheduler', '0013_items_completed'),
    ]

    dependencies = [
        ('scheduler', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='modelservice',
            name='aliases',
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name='quota',
            name='share_is_limit',
            field=models.BooleanField(db_default=False, default=False, help_text='The user never gets more than the share, even if GPUs are free.', verbose_name='share is a limit'),
        ),
        migrations.AddField(
            model_name='usageshare',
            name='owed_s',
            field=models.FloatField(db_default=0, default=0),
        ),
        migrations.AlterField(
            model_name='quota',
            name='reserved_pct',
            field=models.FloatField(default=20.0, help_text='Percent of the share that jobs of priority 4 and 5 take first.', validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(100)], verbose_name='kept for user-initiated jobs'),
        ),
        migrations.AddField(
            model_name='job',
            name='left_out',
            field=models.JSONField(blank=True, db_default=models.Value({}, models.JSONField()), default=dict),
        ),
        migrations.AddField(
            model_name='job',
            name='limits',
            field=models.JSONField(blank=True, db_default=models.Value({}, models.JSONField()), default=dict),
        ),
        migrations.AddField(
            model_name='job',
            name='primary_group',
            field=models.CharField(blank=True, db_default='', default='', max_length=120),
        ),
        migrations.AddField(
            model_name='attempt',
            name='port',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='attempt',
            name='ports',
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at__isnull', True), ('port__isnull', False)), fields=('host', 'port'), name='attempt_port_once'),
        ),
        migrations.AddField(
            model_name='job',
            name='held_after',
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='held_log',
            field=models.TextField(blank=True, db_default='', default=''),
        ),
        migrations.AddField(
            model_name='job',
            name='pause_on_quick_failure',
            field=models.BooleanField(db_default=False, default=False, verbose_name='hold jobs like it after quick failures'),
        ),
        migrations.AddField(
            model_name='notificationsettings',
            name='pause_on_quick_failure',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='notificationsettings',
            name='quick_failure_s',
            field=models.PositiveIntegerField(db_default=30, default=30),
        ),
        migrations.AddField(
            model_name='notificationsettings',
            name='quick_failures',
            field=models.PositiveSmallIntegerField(db_default=3, default=3),
        ),
        migrations.AddField(
            model_name='submissionkey',
            name='prompt',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduler.prompt'),
        ),
        migrations.AlterField(
            model_name='submissionkey',
            name='job',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduler.job'),
        ),
        migrations.AddConstraint(
            model_name='submissionkey',
            constraint=models.CheckConstraint(condition=models.Q(('job', None), ('prompt', None), _connector='XOR'), name='submission_key_of_job_or_prompt'),
        ),
        migrations.AddField(
            model_name='batch',
            name='failed_boots',
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='batch',
            name='started_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='batch',
            name='work',
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='batch',
            name='workers',
            field=models.JSONField(blank=True, db_default=models.Value({}, models.JSONField()), default=dict),
        ),
        migrations.AddField(
            model_name='batchitem',
            name='failures',
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='batchitem',
            name='host',
            field=models.CharField(blank=True, db_default='', default='', max_length=100),
        ),
        migrations.AddField(
            model_name='job',
            name='worker_batch',
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='scriptdefinition',
            name='worker',
            field=models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list, help_text='List of words, such as ["{python}", "{programs}/serve.py", "module:Class"]. It loads once and answers the items of a batch. Empty: each item of a batch is a job.', verbose_name='command of a worker'),
        ),
        migrations.AlterField(
            model_name='scriptdefinition',
            name='argv',
            field=models.JSONField(blank=True, default=list, help_text='List of words, such as ["python3", "embed.py", "{input}", ["-m", "{model}"]]. An inner list is left out when one of its arguments is not given. No shell is used.', verbose_name='command of a job'),
        ),
        migrations.CreateModel(
            name='HostForecast',
            fields=[
                ('host', models.CharField(max_length=100, primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('offers', models.JSONField(default=dict)),
            ],
        ),
        migrations.AddField(
            model_name='exclusiverun',
            name='approval',
            field=models.CharField(choices=[('none', 'none'), ('share', 'share'), ('asked', 'asked'), ('approved', 'approved')], db_default='none', default='none', max_length=10),
        ),
        migrations.AddField(
            model_name='exclusiverun',
            name='approved_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=150),
        ),
        migrations.AddField(
            model_name='modelservice',
            name='boot_s',
            field=models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MaxValueValidator(86400)], verbose_name='usual boot time'),
        ),
        migrations.AddField(
            model_name='attempt',
            name='items_completed',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.RunPython(add_workers, migrations.RunPython.noop),
    ]
