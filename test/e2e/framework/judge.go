// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/oracle"
)

const (
	// seedVariable is the variable with a random seed. With the same seed, a test repeats the
	// choices of an earlier run.
	seedVariable = "E2E_SEED"
	// fullVariable is the variable that selects the large size of tests with two sizes.
	fullVariable = "E2E_FULL"
)

// Random returns the random source of a test. It logs the seed. With this seed in E2E_SEED, the
// choices are the same again.
func Random(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := uint64(time.Now().UnixNano())
	if value := os.Getenv(seedVariable); value != "" {
		var err error
		if seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			tb.Fatalf("%s=%q: %v", seedVariable, value, err)
		}
	}
	tb.Logf("%s=%d makes the same choices again", seedVariable, seed)
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not for secrets
}

// Full reports whether tests with two sizes run in the large size.
func Full(tb testing.TB) bool {
	tb.Helper()
	value := os.Getenv(fullVariable)
	if value == "" {
		return false
	}
	full, err := strconv.ParseBool(value)
	must.True(tb, err == nil, "%s=%q: must be one of 1, true, 0, false", fullVariable, value)
	return full
}

// Judge records the changes of the nodes of a pool and the pods of a namespace from now to the end
// of the test.
func (c *Cluster) Judge(tb testing.TB, pool, namespace string) *oracle.Recorder {
	tb.Helper()
	return c.Record(tb, oracle.Scope{
		Nodes: labels.SelectorFromSet(labels.Set{Pool: pool}), Namespaces: []string{namespace},
	})
}

// Record records the changes in a scope from now to the end of the test. The scope needs no audit
// log.
func (c *Cluster) Record(tb testing.TB, scope oracle.Scope) *oracle.Recorder {
	tb.Helper()
	scope.AuditLog = c.AuditLogFile()
	admin := c.As(tb)
	return must.Get(oracle.Start(tb.Context(), admin.Kube, admin.Haulout, scope))(tb)
}

// Await waits until a check of what was recorded returns "".
func Await(tb testing.TB, recorder *oracle.Recorder, patience time.Duration, check func(*oracle.View) string) {
	tb.Helper()
	ctx, cancel := context.WithTimeoutCause(tb.Context(), patience, fmt.Errorf("timed out after %v", patience))
	defer cancel()
	must.Do(tb, recorder.Wait(ctx, check))
}

// AuditLog returns kube-apiserver's log of evictions and deletions of pods, from now on.
func (c *Cluster) AuditLog(tb testing.TB) oracle.AuditLog {
	tb.Helper()
	return must.Get(oracle.OpenAuditLog(c.AuditLogFile()))(tb)
}

// AuditLogFile returns the file of kube-apiserver's log of evictions and deletions of pods.
func (c *Cluster) AuditLogFile() string {
	return filepath.Join(c.dir, "logs", "kube-apiserver-audit.log")
}

// Accept fails the test with the findings of a judge.
func Accept(tb testing.TB, found []string, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	const most = 10
	for _, text := range found[:min(most, len(found))] {
		tb.Error(text)
	}
	if more := len(found) - most; more > 0 {
		tb.Errorf("and %d more", more)
	}
}

const (
	// lastLines is the maximum number of lines of each output that a failed test prints.
	lastLines = 60
	// diagnoses is the maximum number of tests of a run with this output: one failure may cause
	// many others.
	diagnoses = 3
)

// Diagnose prints the state of the cluster if the test has failed, because the cluster no longer
// exists when a developer reads the output. It must be called before any cleanup.
func (c *Cluster) Diagnose(tb testing.TB) {
	tb.Helper()
	if _, again := c.diagnosed.LoadOrStore(tb.Name(), true); again || c.diagnoses.Add(1) > diagnoses {
		return
	}
	for _, look := range []string{
		"get nodemaintenancerollouts.maintenance.haulout.dev,nodetasks.maintenance.haulout.dev -o yaml",
		"get nodemaintenances -o yaml", "get evacuations -A -o wide",
		"get pods -A -o wide --sort-by=.metadata.creationTimestamp",
		"get deployments,replicasets,daemonsets,poddisruptionbudgets -A -o wide",
		"get nodes -o custom-columns=NAME:.metadata.name,UNSCHEDULABLE:.spec.unschedulable," +
			"TAINTS:.spec.taints[*].key," +
			"READY:.status.conditions[?(@.type==\"Ready\")].status",
		"get events -A --sort-by=.metadata.creationTimestamp",
	} {
		// A command may fail because a server does not respond, which may be the cause of the
		// failed test.
		out, errOut, err := c.kubectl(background(), "", append(strings.Fields(look), "--request-timeout=5s")...)
		limit := lastLines
		if strings.HasSuffix(look, "yaml") {
			limit = 4 * lastLines
		}
		tb.Logf("cluster: kubectl %s (%v):\n%s%s", look, err, last(out, limit), errOut)
	}
	for _, name := range []string{"haulout-apiserver", "kube-scheduler", "kwok"} {
		content, err := os.ReadFile(filepath.Join(c.dir, "logs", name+".log"))
		lines := bytes.Split(content, []byte("\n"))
		lines = slices.DeleteFunc(lines, func(line []byte) bool { return bytes.Contains(line, []byte("FLAG: --")) })
		tb.Logf("cluster: the end of the log of %s (%v):\n%s",
			name, err, last(string(bytes.Join(lines, []byte("\n"))), lastLines))
	}
}

// last returns the last lines of a text.
func last(text string, lines int) string {
	all := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// Metrics are the samples of a server, by name.
type Metrics testutil.Metrics

// ScrapeServer reads the metrics of haulout-apiserver directly: the aggregator proxies only the
// API.
func (c *Cluster) ScrapeServer(tb testing.TB) (Metrics, error) {
	tb.Helper()
	return c.scrapeProcess(tb, "haulout-apiserver")
}

// ScrapeScheduler returns the metrics of kube-scheduler or haulout-scheduler.
func (c *Cluster) ScrapeScheduler(tb testing.TB) (Metrics, error) {
	tb.Helper()
	return c.scrapeProcess(tb, "kube-scheduler")
}

func (c *Cluster) scrapeProcess(tb testing.TB, process string) (Metrics, error) {
	tb.Helper()
	config, err := c.Directly(tb, process)
	if err != nil {
		return nil, err
	}
	return scrape(tb, config)
}

// Directly returns the configuration of a client of a program of the cluster, past the aggregator,
// with the credentials of the administrator.
func (c *Cluster) Directly(tb testing.TB, process string) (*rest.Config, error) {
	tb.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, "state.json"))
	if err != nil {
		return nil, err
	}
	var state struct {
		Ports map[string]int `json:"ports"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(c.As(tb).Config)
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", state.Ports[process])
	// The certificate is not from the cluster's CA; the tests send nothing that is secret.
	config.Insecure, config.CAData, config.CAFile = true, nil, ""
	return config, nil
}

// ScrapeHost reads the metrics of kube-apiserver.
func (c *Cluster) ScrapeHost(tb testing.TB) (Metrics, error) {
	tb.Helper()
	return scrape(tb, c.As(tb).Config)
}

func scrape(tb testing.TB, config *rest.Config) (Metrics, error) {
	tb.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(tb.Context()).Raw()
	if err != nil {
		return nil, err
	}
	metrics := testutil.NewMetrics()
	return Metrics(metrics), testutil.ParseMetrics(string(text), &metrics)
}

// Sum returns the sum of the samples with a name and with the given labels. labels has the name and
// the value of each label in turn.
func (m Metrics) Sum(name string, labels ...string) float64 {
	var sum float64
	for _, sample := range m[name] {
		matches := true
		for i := 0; i < len(labels); i += 2 {
			matches = matches && string(sample.Metric[testutil.LabelName(labels[i])]) == labels[i+1]
		}
		if matches {
			sum += float64(sample.Value)
		}
	}
	return sum
}
