"""The user who owns the jobs of models is no person, also not one of a login service."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from gpucoord_site.accounts import people
from scheduler.facts.language_models import OWNER
from scheduler.language_models.model_services import rows
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_a_login_service_can_not_make_the_owner_of_models() -> None:
    with pytest.raises(people.NotAccepted, match="stands for model services"):
        people.create_external("ldap", "subject", OWNER, NOW, account=None)

    assert not User.objects.exists()


def test_the_owner_of_models_has_no_password() -> None:
    assert not rows.job_owner().has_usable_password()
