"""Admin: what its pages are called."""

from __future__ import annotations

from django.contrib import admin

admin.site.index_title = "Everything that gpucoord keeps"
admin.site.site_header = "gpucoord administration"
admin.site.site_title = "gpucoord"
