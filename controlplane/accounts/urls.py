"""URLs of signing in and of the account page."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from controlplane.accounts import views

urlpatterns = [
    path("login/", views.SignIn.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("sign-in/<str:secret>/", views.sign_in_link, name="sign-in-link"),
    path("account/", views.account, name="account"),
    path("account/tokens/<int:pk>/revoke/", views.revoke_token, name="token-revoke"),
]
