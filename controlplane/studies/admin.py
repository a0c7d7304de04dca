from django.contrib import admin

from controlplane.adminsite import ServiceAdmin
from controlplane.studies.models import Stage, Study


@admin.register(Study)
class StudyAdmin(ServiceAdmin):
    list_display = ["name", "kind", "status", "reason", "owner", "id", "created_at", "ended_at"]
    list_filter = ["kind", "status", "owner"]
    search_fields = ["id", "name", "owner__username"]
    list_select_related = ["owner"]


@admin.register(Stage)
class StageAdmin(ServiceAdmin):
    list_display = ["study", "number", "experiment"]
    search_fields = ["study__name", "study__id", "experiment__id"]
    list_select_related = ["study", "experiment"]
