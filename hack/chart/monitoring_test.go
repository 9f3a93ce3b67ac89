// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// monitoring returns values with switches of monitoring, and more values of each.
func monitoring(more values) values { return image(values{"monitoring": more}) }

// on returns values that enable a switch. Helm adds default values to the values that it gets.
func on() values { return values{"enabled": true} }

// artifact returns the text of a file of artifacts/monitoring.
func artifact(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "artifacts", "monitoring", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestMonitoringEqualsArtifacts enables each switch, and compares what the chart adds with the
// files. test/monitoring checks these files with the libraries of Prometheus and of its operator.
func TestMonitoringEqualsArtifacts(t *testing.T) {
	for name, test := range map[string]struct {
		with  values
		files []string
	}{
		"serviceMonitor": {values{"serviceMonitor": on()}, []string{"servicemonitor.yaml"}},
		"podMonitor":     {values{"podMonitor": on()}, []string{"podmonitor.yaml"}},
		"scrapeConfig":   {values{"scrapeConfig": on()}, []string{"scrapeconfig.yaml"}},
		"rbac":           {values{"rbac": on()}, []string{"rbac.yaml"}},
		"several": {
			values{"serviceMonitor": on(), "scrapeConfig": on(), "rbac": on()},
			[]string{"servicemonitor.yaml", "scrapeconfig.yaml", "rbac.yaml"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var text []string
			for _, file := range test.files {
				text = append(text, artifact(t, file))
			}
			want, got := objects(t, strings.Join(text, "\n---\n")), added(t, image(nil), monitoring(test.with))
			for _, object := range got {
				normalize(object)
				metadata := object["metadata"].(values)
				if diff := cmp.Diff(values{"app.kubernetes.io/part-of": "haulout"}, metadata["labels"]); diff != "" {
					t.Errorf("the labels of %s (-want +got):\n%s", metadata["name"], diff)
				}
				delete(metadata, "labels")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("artifacts/monitoring (-) and the chart (+) differ:\n%s", diff)
			}
		})
	}
}

func TestRulesAndDashboardEqualArtifacts(t *testing.T) {
	all := added(t, image(nil), monitoring(values{"prometheusRule": on(), "dashboard": on()}))
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, []string{
		"ConfigMap haulout-system/haulout-dashboard", "PrometheusRule haulout-system/haulout",
	}) {
		t.Fatalf("got the objects %q", got)
	}
	var rules values
	if err := yaml.UnmarshalStrict([]byte(artifact(t, "alerts.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rules, all["PrometheusRule haulout-system/haulout"]["spec"]); diff != "" {
		t.Errorf("alerts.yaml (-) and the PrometheusRule (+) differ:\n%s", diff)
	}
	dashboard := all["ConfigMap haulout-system/haulout-dashboard"]
	if diff := cmp.Diff(artifact(t, "dashboard.json"), dashboard["data"].(values)["haulout.json"]); diff != "" {
		t.Errorf("dashboard.json (-) and the ConfigMap (+) differ:\n%s", diff)
	}
	if label := dashboard["metadata"].(values)["labels"].(values)["grafana_dashboard"]; label != "1" {
		t.Errorf("the label of the dashboard is %v", label)
	}
}

func TestValuesChangeTheMonitoring(t *testing.T) {
	with := nodeAgent(values{"config": values{"metricsBindAddress": "[::]:9999"}})
	with["servingCertificate"] = values{"secretName": "haulout-tls"}
	with["monitoring"] = values{
		"labels": values{"release": "kube-prometheus-stack"}, "serviceMonitor": on(), "scrapeConfig": on(),
		"prometheusRule": values{"enabled": true, "runbookURL": "https://docs.example.com/haulout"},
		"rbac":           values{"enabled": true, "serviceAccount": values{"name": "prometheus", "namespace": "metrics"}},
	}
	all, err := render(t, load(t), "platform", with)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"ServiceMonitor platform/haulout-apiserver": {
			"release: kube-prometheus-stack", "name: haulout-tls", "serverName: haulout-apiserver.platform.svc",
		},
		"ScrapeConfig platform/haulout-node-agent": {"release: kube-prometheus-stack", "${1}:9999"},
		"PrometheusRule platform/haulout": {
			"release: kube-prometheus-stack", "runbook_url: https://docs.example.com/haulout#hauloutdrainblocked",
			"kubectl -n platform get",
		},
		"RoleBinding platform/haulout-prometheus": {"name: prometheus\n", "namespace: metrics"},
	} {
		text, err := yaml.Marshal(all[name])
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s does not contain %q:\n%s", name, part, text)
			}
		}
		if strings.Contains(string(text), "haulout-system") || strings.Contains(string(text), "docs/monitoring.md") {
			t.Errorf("%s has a value of artifacts/monitoring:\n%s", name, text)
		}
	}
}

func TestInvalidMonitoringIsRefused(t *testing.T) {
	scraped := nodeAgent(nil)
	scraped["monitoring"] = values{"scrapeConfig": on()}
	for name, test := range map[string]struct {
		with values
		want string
	}{
		"two monitors of the server":         {monitoring(values{"serviceMonitor": on(), "podMonitor": on()}), "enable one of them"},
		"agents on the loopback address":     {scraped, "nodeAgent.config.metricsBindAddress, which is 127.0.0.1:10271"},
		"an unknown switch":                  {monitoring(values{"serviceMonitors": on()}), "serviceMonitors"},
		"a switch without enabled":           {monitoring(values{"podMonitor": true}), "/monitoring/podMonitor"},
		"a ServiceAccount without a name":    {monitoring(values{"rbac": values{"serviceAccount": values{"name": ""}}}), "/serviceAccount/name"},
		"a runbook URL that is no URL":       {monitoring(values{"prometheusRule": values{"runbookURL": "docs"}}), "/runbookURL"},
		"a number in place of a label value": {monitoring(values{"labels": values{"release": 1}}), "/monitoring/labels/release"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, load(t), "haulout-system", test.with)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one that contains %s", err, test.want)
			}
		})
	}
}
