// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	monitoringv1alpha1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	promconfig "github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"sigs.k8s.io/yaml"
)

// kubernetes has the fields of kubernetes_sd_configs that the example uses. The package of
// Prometheus that has all of them compiles the clients of all kinds of Kubernetes.
type kubernetes struct {
	Role       string                   `yaml:"role"`
	Namespaces struct{ Names []string } `yaml:"namespaces"`
	Selectors  []struct {
		Role  string `yaml:"role"`
		Label string `yaml:"label"`
	} `yaml:"selectors"`
}

func init() { discovery.RegisterConfig(&kubernetes{}) }

func (*kubernetes) Name() string { return "kubernetes" }

func (*kubernetes) NewDiscoverer(discovery.DiscovererOptions) (discovery.Discoverer, error) {
	panic("the test has no cluster")
}

func (*kubernetes) NewDiscovererMetrics(prometheus.Registerer, discovery.RefreshMetricsInstantiator) discovery.DiscovererMetrics {
	panic("the test has no cluster")
}

// target is a target as the discovery of Kubernetes finds it, and what Prometheus scrapes.
type target struct {
	discovered map[string]string
	want       map[string]string
}

// targets has the targets of each job. An empty result means that Prometheus does not scrape it.
var targets = map[string][]target{
	"haulout-apiserver": {
		{
			map[string]string{
				"__address__": "10.0.0.7:8443", "__meta_kubernetes_pod_container_port_name": "https",
				"__meta_kubernetes_pod_name": "haulout-apiserver-1",
			},
			map[string]string{"__address__": "10.0.0.7:8443", "pod": "haulout-apiserver-1"},
		},
		{map[string]string{"__address__": "10.0.0.7:9", "__meta_kubernetes_pod_container_port_name": "sidecar"}, nil},
	},
	"haulout-node-agent": {
		{
			map[string]string{"__address__": "192.0.2.4:10250", "__meta_kubernetes_node_name": "node-1"},
			map[string]string{"__address__": "192.0.2.4:10271", "instance": "node-1"},
		},
		{
			map[string]string{"__address__": "[2001:db8::4]:10250", "__meta_kubernetes_node_name": "node-2"},
			map[string]string{"__address__": "[2001:db8::4]:10271", "instance": "node-2"},
		},
	},
	"haulout-scheduler": {
		{
			map[string]string{
				"__address__": "10.0.0.8:10259", "__meta_kubernetes_pod_container_port_name": "https",
				"__meta_kubernetes_pod_name": "haulout-scheduler-1",
			},
			map[string]string{"__address__": "10.0.0.8:10259", "pod": "haulout-scheduler-1"},
		},
	},
}

// expectTargets relabels the targets of a job as Prometheus does.
func expectTargets(t *testing.T, job string, rules []*relabel.Config, set map[string]string) {
	t.Helper()
	if len(targets[job]) == 0 {
		t.Errorf("job %s has no targets in this test", job)
	}
	for _, target := range targets[job] {
		builder := labels.NewBuilder(labels.FromMap(target.discovered))
		kept := relabel.ProcessBuilder(builder, rules...)
		var got map[string]string
		if kept {
			got = builder.Labels().Map()
			maps.DeleteFunc(got, func(name, _ string) bool { return strings.HasPrefix(name, "__meta_") })
		}
		want := maps.Clone(target.want)
		if want != nil {
			maps.Copy(want, set)
		}
		if !maps.Equal(got, want) {
			t.Errorf("job %s: got the target %v, want %v", job, got, want)
		}
	}
}

// TestScrapeJobs loads the scrape jobs as Prometheus does.
func TestScrapeJobs(t *testing.T) {
	loaded, err := promconfig.Load(string(read(t, "prometheus.yaml")), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var jobs []string
	for _, job := range loaded.ScrapeConfigs {
		jobs = append(jobs, job.JobName)
		expectTargets(t, job.JobName, job.RelabelConfigs, nil)
		client := job.HTTPClientConfig
		if job.Scheme == "https" && (client.Authorization == nil || client.Authorization.CredentialsFile == "") {
			t.Errorf("job %s sends no token", job.JobName)
		}
		if job.JobName == "haulout-apiserver" {
			expectTLS(t, client.TLSConfig)
		}
	}
	if want := []string{"haulout-apiserver", "haulout-node-agent", "haulout-scheduler"}; !slices.Equal(jobs, want) {
		t.Errorf("the jobs are %q, want %q", jobs, want)
	}
}

func expectTLS(t *testing.T, c config.TLSConfig) {
	t.Helper()
	if c.InsecureSkipVerify || c.CAFile == "" || c.ServerName != "haulout-apiserver.haulout-system.svc" {
		t.Errorf("the job does not verify the server: %+v", c)
	}
}

// TestMonitors decodes the objects for the Prometheus operator with its types, which refuses
// unknown fields.
func TestMonitors(t *testing.T) {
	var service monitoringv1.ServiceMonitor
	decode(t, "servicemonitor.yaml", &service)
	var pod monitoringv1.PodMonitor
	decode(t, "podmonitor.yaml", &pod)
	for kind, tls := range map[string]*monitoringv1.SafeTLSConfig{
		"ServiceMonitor": &service.Spec.Endpoints[0].TLSConfig.SafeTLSConfig, "PodMonitor": pod.Spec.PodMetricsEndpoints[0].TLSConfig,
	} {
		if tls.CA.Secret == nil || tls.CA.Secret.Key != "ca.crt" || tls.ServerName == nil || *tls.ServerName != "haulout-apiserver.haulout-system.svc" {
			t.Errorf("the %s does not verify the server: %+v", kind, tls)
		}
	}
	var agents monitoringv1alpha1.ScrapeConfig
	decode(t, "scrapeconfig.yaml", &agents)
	var rules []*relabel.Config
	for _, from := range agents.Spec.RelabelConfigs {
		rule := relabel.DefaultRelabelConfig
		for _, label := range from.SourceLabels {
			rule.SourceLabels = append(rule.SourceLabels, model.LabelName(label))
		}
		if from.Regex != "" {
			rule.Regex = relabel.MustNewRegexp(from.Regex)
		}
		if from.Replacement != nil {
			rule.Replacement = *from.Replacement
		}
		rule.TargetLabel = from.TargetLabel
		if err := rule.Validate(model.UTF8Validation); err != nil {
			t.Fatal(err)
		}
		rules = append(rules, &rule)
	}
	expectTargets(t, "haulout-node-agent", rules, map[string]string{"job": "haulout-node-agent"})
}

// decode decodes the first object of a file.
func decode(t *testing.T, name string, into any) {
	t.Helper()
	document, _, _ := strings.Cut(string(read(t, name)), "\n---\n")
	if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
