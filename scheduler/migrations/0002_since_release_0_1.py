import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def drop_environments(apps, schema_editor):
    """Keep the names, and drop the values of jobs that have ended."""
    jobs = apps.get_model("scheduler", "Job").objects.exclude(env={}).only("id", "env", "state")
    changed = []
    for job in jobs.order_by("id").iterator(chunk_size=500):
        job.env_names = sorted(job.env)
        if job.state == "finished":
            job.env = {}
        changed.append(job)
        if len(changed) == 500:
            jobs.model.objects.bulk_update(changed, ["env", "env_names"])
            changed.clear()
    jobs.model.objects.bulk_update(changed, ["env", "env_names"])


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0001_release_0_1'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='released_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='attempt',
            name='orphans_stopping_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name='SubmissionKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=255)),
                ('digest', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_index=True)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='scheduler.job')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'key'), name='submission_key_once_per_user')],
            },
        ),
        migrations.AddField(
            model_name='job',
            name='first_predicted_p90_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='first_predicted_start_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='predicted_start_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='quota',
            name='gpu_share_pct',
            field=models.PositiveSmallIntegerField(blank=True, help_text='Percent of the time of each GPU that a job shares: the default and the most of its gpu_share.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100)], verbose_name='GPU time on shared GPUs'),
        ),
        migrations.AddField(
            model_name="job",
            name="env_names",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.RunPython(drop_environments, migrations.RunPython.noop),
        migrations.CreateModel(
            name='JobInput',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='input', serialize=False, to='scheduler.job')),
                ('data', models.BinaryField()),
                ('size', models.PositiveIntegerField()),
            ],
        ),
        migrations.AddField(
            model_name='job',
            name='has_input',
            field=models.BooleanField(default=False),
        ),
        migrations.CreateModel(
            name='LockRefusal',
            fields=[
                ('gpu_uuid', models.CharField(max_length=96, primary_key=True, serialize=False)),
                ('host', models.CharField(max_length=100)),
                ('text', models.TextField()),
                ('refused_at', models.DateTimeField()),
                ('wait_s', models.FloatField()),
            ],
        ),
        migrations.AddField(
            model_name='job',
            name='blockers_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.RenameModel('PlanTurn', 'PlanVersion'),
        migrations.RenameModel('Means', 'HostCapability'),
        migrations.RenameModel('SharedOut', 'HostCapacity'),
        migrations.RenameModel('UsedShare', 'UsageShare'),
        migrations.RenameModel('GpuDay', 'DailyGpuUsage'),
        migrations.RenameModel('KeptGpu', 'GpuHold'),
    ]
