// Fairlane's rules, alerts and dashboard as a Prometheus mixin.
{
  prometheusRules+:: std.parseYaml(importstr 'rules.yml'),
  prometheusAlerts+:: std.parseYaml(importstr 'alerts.yml'),
  grafanaDashboards+:: { 'fairlane.json': import 'dashboard.json' },
}
