"""Prometheus metrics, OpenTelemetry traces, the dashboard."""
