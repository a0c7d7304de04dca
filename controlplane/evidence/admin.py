from django.contrib import admin

from controlplane.adminsite import ServiceAdmin
from controlplane.evidence.models import Artifact, SampleChunk, Segment


@admin.register(Segment)
class SegmentAdmin(ServiceAdmin):
    list_display = ["run", "attempt", "number", "records", "bytes", "created_at"]
    search_fields = ["run__id", "run__title", "sha256"]
    list_select_related = ["run"]


@admin.register(Artifact)
class ArtifactAdmin(ServiceAdmin):
    list_display = ["run", "attempt", "name", "bytes", "created_at"]
    list_filter = ["name"]
    search_fields = ["run__id", "run__title", "sha256"]
    list_select_related = ["run"]


@admin.register(SampleChunk)
class SampleChunkAdmin(ServiceAdmin):
    list_display = ["run", "attempt", "first_seq", "last_seq"]
    search_fields = ["run__id", "run__title"]
    list_select_related = ["run"]
