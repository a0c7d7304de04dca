"""Tests of the control plane's services."""
