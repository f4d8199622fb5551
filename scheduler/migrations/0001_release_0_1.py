
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.comparison
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='ModeState',
            fields=[
                ('host', models.CharField(max_length=100, primary_key=True, serialize=False)),
                ('mode', models.CharField(default='cooperative', max_length=12)),
                ('since_at', models.DateTimeField()),
                ('reason', models.TextField(blank=True)),
                ('automatic', models.CharField(default='cooperative', max_length=12)),
                ('automatic_reason', models.TextField(blank=True)),
                ('override', models.CharField(blank=True, max_length=12)),
                ('override_until', models.DateTimeField(blank=True, null=True)),
                ('override_by', models.CharField(blank=True, max_length=150)),
            ],
        ),
        migrations.CreateModel(
            name='PlanTurn',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('taken', models.PositiveBigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='SharedOut',
            fields=[
                ('host', models.CharField(max_length=100, primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('gpu_uuids', models.JSONField(default=list)),
                ('gpu_bytes', models.BigIntegerField(null=True)),
            ],
            options={
                'verbose_name_plural': 'shared out',
            },
        ),
        migrations.CreateModel(
            name='ThrottleState',
            fields=[
                ('host', models.CharField(max_length=100, primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('allowed', models.TextField()),
                ('memory', models.TextField()),
                ('sharing', models.PositiveIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='GpuDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=100)),
                ('owner', models.CharField(max_length=150)),
                ('from_at', models.DateTimeField()),
                ('job_s', models.FloatField(default=0)),
                ('outside_s', models.FloatField(default=0)),
            ],
            options={
                'verbose_name': 'GPU day',
                'constraints': [models.UniqueConstraint(fields=('from_at', 'owner', 'host'), name='gpu_day_once')],
            },
        ),
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120)),
                ('command', models.TextField()),
                ('argv', models.JSONField()),
                ('cwd', models.CharField(blank=True, max_length=4096)),
                ('env', models.JSONField(blank=True, default=dict)),
                ('priority', models.PositiveSmallIntegerField(choices=[(5, '5 urgent'), (4, '4 high'), (3, '3 normal'), (2, '2 low'), (1, '1 background')], default=3, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(5)])),
                ('gpus', models.PositiveSmallIntegerField(default=1)),
                ('gpu_memory_bytes', models.BigIntegerField(blank=True, null=True)),
                ('exclusive', models.BooleanField(default=False)),
                ('capability', models.CharField(blank=True, max_length=8, verbose_name='least compute capability')),
                ('gpu_model', models.CharField(blank=True, max_length=100)),
                ('power', models.FloatField(blank=True, null=True, verbose_name='least power rank')),
                ('gpu_uuid', models.CharField(blank=True, max_length=96, verbose_name='this GPU alone')),
                ('share_pct', models.PositiveSmallIntegerField(blank=True, null=True, verbose_name="most of a GPU's time")),
                ('cpus', models.FloatField(blank=True, null=True, verbose_name='most CPUs')),
                ('memory_bytes', models.BigIntegerField(blank=True, null=True, verbose_name='most host memory')),
                ('preemptible', models.BooleanField(default=False)),
                ('requeue', models.BooleanField(default=False)),
                ('yield_signal', models.CharField(blank=True, max_length=12)),
                ('grace_s', models.PositiveIntegerField(blank=True, null=True)),
                ('retries', models.PositiveSmallIntegerField(default=0)),
                ('begin_at', models.DateTimeField(blank=True, null=True)),
                ('array', models.PositiveBigIntegerField(blank=True, db_index=True, null=True)),
                ('array_index', models.PositiveIntegerField(blank=True, null=True)),
                ('array_limit', models.PositiveIntegerField(blank=True, null=True)),
                ('depends', models.BooleanField(default=False)),
                ('estimate_s', models.PositiveIntegerField(blank=True, null=True)),
                ('time_limit_s', models.PositiveIntegerField(blank=True, null=True)),
                ('state', models.CharField(choices=[('queued', 'queued'), ('starting', 'starting'), ('running', 'running'), ('stopping', 'stopping'), ('finished', 'finished')], default='queued', max_length=12)),
                ('outcome', models.CharField(blank=True, choices=[('succeeded', 'succeeded'), ('failed', 'failed'), ('cancelled', 'cancelled'), ('timed_out', 'timed out'), ('lost', 'lost'), ('preempted', 'preempted'), ('skipped', 'skipped')], max_length=12)),
                ('exit_code', models.IntegerField(blank=True, null=True)),
                ('signal', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('problem', models.TextField(blank=True)),
                ('blockers', models.JSONField(blank=True, default=list)),
                ('held', models.TextField(blank=True)),
                ('held_by', models.CharField(blank=True, max_length=150)),
                ('retry_at', models.DateTimeField(blank=True, null=True)),
                ('failures', models.PositiveSmallIntegerField(default=0)),
                ('requeues', models.PositiveSmallIntegerField(default=0, verbose_name='times it yielded')),
                ('may_preempt_at', models.DateTimeField(blank=True, null=True)),
                ('submitted_at', models.DateTimeField()),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                ('cancelled_by', models.CharField(blank=True, max_length=150)),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveSmallIntegerField()),
                ('host', models.CharField(max_length=100)),
                ('gpu_uuids', models.JSONField(default=list)),
                ('nonce', models.CharField(max_length=32, unique=True)),
                ('account', models.CharField(blank=True, max_length=150, verbose_name='runs as')),
                ('placed_at', models.DateTimeField()),
                ('runner_pid', models.PositiveIntegerField(blank=True, null=True)),
                ('runner_start_ticks', models.BigIntegerField(blank=True, null=True)),
                ('boot_id', models.CharField(blank=True, max_length=40)),
                ('pid', models.PositiveIntegerField(blank=True, null=True)),
                ('start_ticks', models.BigIntegerField(blank=True, null=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('outcome', models.CharField(blank=True, choices=[('succeeded', 'succeeded'), ('failed', 'failed'), ('cancelled', 'cancelled'), ('timed_out', 'timed out'), ('lost', 'lost'), ('preempted', 'preempted'), ('skipped', 'skipped')], max_length=12)),
                ('problem', models.TextField(blank=True)),
                ('exit_code', models.IntegerField(blank=True, null=True)),
                ('signal', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('cpu_s', models.FloatField(blank=True, null=True)),
                ('peak_memory_bytes', models.BigIntegerField(blank=True, null=True)),
                ('log_bytes', models.BigIntegerField(blank=True, null=True)),
                ('files_bytes', models.BigIntegerField(blank=True, null=True)),
                ('saved_bytes', models.BigIntegerField(blank=True, null=True)),
                ('files_gone_at', models.DateTimeField(blank=True, null=True)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='scheduler.job')),
            ],
        ),
        migrations.CreateModel(
            name='JobDependency',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('after', models.CharField(choices=[('end', 'end'), ('success', 'success')], default='success', max_length=8)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='dependencies', to='scheduler.job')),
                ('on', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='dependents', to='scheduler.job')),
            ],
            options={
                'verbose_name_plural': 'job dependencies',
            },
        ),
        migrations.CreateModel(
            name='KeptGpu',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=100)),
                ('gpu_uuid', models.CharField(max_length=96)),
                ('until', models.DateTimeField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='kept_gpus', to='scheduler.job')),
            ],
            options={
                'verbose_name': 'kept GPU',
            },
        ),
        migrations.CreateModel(
            name='Means',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=100)),
                ('name', models.CharField(max_length=20)),
                ('active', models.BooleanField(default=False)),
                ('text', models.TextField(blank=True)),
                ('since_at', models.DateTimeField()),
            ],
            options={
                'verbose_name_plural': 'means',
                'constraints': [models.UniqueConstraint(fields=('host', 'name'), name='means_host_name')],
            },
        ),
        migrations.CreateModel(
            name='Quota',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('share_pct', models.FloatField(blank=True, help_text="Percent of the machine's GPUs, when others want them too.", null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(100)], verbose_name='entitled share')),
                ('reserved_pct', models.FloatField(default=20.0, help_text='Percent of the share that only jobs of priority 4 and 5 may take.', validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(100)], verbose_name='kept for user-initiated jobs')),
                ('gpu_minutes', models.FloatField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='GPU-minutes a day')),
                ('gpus', models.PositiveIntegerField(blank=True, null=True, verbose_name='GPUs at a time')),
                ('jobs', models.PositiveIntegerField(blank=True, null=True, verbose_name='running jobs')),
                ('memory_bytes', models.PositiveBigIntegerField(blank=True, help_text='Such as "80GiB".', null=True, verbose_name='GPU memory at a time')),
                ('queued', models.PositiveIntegerField(blank=True, null=True, verbose_name='waiting jobs')),
                ('priority', models.PositiveSmallIntegerField(blank=True, choices=[(5, '5 urgent'), (4, '4 high'), (3, '3 normal'), (2, '2 low'), (1, '1 background')], null=True, verbose_name='highest priority')),
                ('group', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='quotas', to='auth.group')),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='quotas', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='TimeWindow',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('gpu_uuids', models.JSONField(blank=True, default=list, verbose_name='GPUs')),
                ('days', models.JSONField(default=list)),
                ('start', models.TimeField()),
                ('end', models.TimeField()),
                ('zone', models.CharField(max_length=64, verbose_name='time zone')),
                ('share_pct', models.FloatField(default=100, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100)], verbose_name='share (%)')),
                ('kept', models.BooleanField(default=True, help_text='Others are kept off then. If not: the holder may use the GPUs only then.', verbose_name='kept for the holder')),
                ('first_day', models.DateField(blank=True, null=True)),
                ('last_day', models.DateField(blank=True, null=True)),
                ('state', models.CharField(choices=[('asked', 'Asked'), ('approved', 'Approved'), ('declined', 'Declined'), ('withdrawn', 'Withdrawn')], default='asked', max_length=10)),
                ('reason', models.TextField(blank=True)),
                ('asked_by', models.CharField(max_length=150)),
                ('asked_at', models.DateTimeField()),
                ('decided_by', models.CharField(blank=True, max_length=150)),
                ('decided_at', models.DateTimeField(blank=True, null=True)),
                ('answer', models.TextField(blank=True)),
                ('group', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='auth.group')),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='UsedShare',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=100)),
                ('owner', models.CharField(max_length=150)),
                ('usage', models.FloatField(default=0)),
                ('charge', models.FloatField(default=0)),
                ('outside', models.FloatField(default=0)),
                ('seen_s', models.FloatField(default=0)),
                ('known_s', models.FloatField(default=0)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('host', 'owner'), name='used_share_host_owner')],
            },
        ),
        migrations.CreateModel(
            name='YieldRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('preemption', 'Preemption'), ('eviction', 'Eviction')], max_length=12)),
                ('code', models.CharField(max_length=32)),
                ('text', models.TextField()),
                ('counts', models.BooleanField(default=True)),
                ('asked_at', models.DateTimeField()),
                ('deadline', models.DateTimeField()),
                ('withdrawn_at', models.DateTimeField(blank=True, null=True)),
                ('attempt', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='yield_request', to='scheduler.attempt')),
                ('for_job', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='scheduler.job')),
            ],
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'queued')), fields=['-priority', 'submitted_at', 'id'], name='job_queue'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'queued'), models.Q(models.Q(('held', ''), _negated=True), ('begin_at__isnull', False), ('retry_at__isnull', False), ('array_limit__isnull', False), ('depends', True), _connector='OR')), fields=['id'], name='job_conditional'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'finished'), _negated=True), fields=['state'], name='job_open'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['owner', '-submitted_at'], name='job_owner_submitted'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('priority__gte', 1), ('priority__lte', 5)), name='job_priority_1_to_5'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('ended_at__isnull', False), ('state', 'finished'), models.Q(('outcome', ''), _negated=True)), models.Q(models.Q(('state', 'finished'), _negated=True), ('ended_at__isnull', True), ('outcome', '')), _connector='OR'), name='job_outcome_when_finished'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(fields=('job', 'number'), name='attempt_job_number'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at__isnull', True)), fields=('job',), name='attempt_one_open'),
        ),
        migrations.AddConstraint(
            model_name='jobdependency',
            constraint=models.UniqueConstraint(fields=('job', 'on'), name='job_dependency_once'),
        ),
        migrations.AddConstraint(
            model_name='keptgpu',
            constraint=models.UniqueConstraint(fields=('host', 'gpu_uuid'), name='kept_gpu_once'),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.CheckConstraint(condition=models.Q(('user__isnull', True), ('group__isnull', True), _connector='OR'), name='quota_of_one', violation_error_message='Choose a user or a group, not both.'),
        ),
        migrations.AddConstraint(
            model_name='quota',
            constraint=models.UniqueConstraint(django.db.models.functions.comparison.Coalesce('user', 0), django.db.models.functions.comparison.Coalesce('group', 0), name='quota_once', violation_error_message='There is a quota for these already: change that one.'),
        ),
        migrations.AddIndex(
            model_name='timewindow',
            index=models.Index(fields=['state'], name='time_window_state'),
        ),
        migrations.AddConstraint(
            model_name='timewindow',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('group__isnull', True), ('user__isnull', False)), models.Q(('group__isnull', False), ('user__isnull', True)), _connector='OR'), name='time_window_one_holder'),
        ),
    ]
