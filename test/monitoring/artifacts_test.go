// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitoring checks the alert rules and the dashboard of artifacts/monitoring with the
// libraries of Prometheus. It is a separate module because these libraries have more than a hundred
// dependencies.
package monitoring

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// artifacts is the folder to check. metrics.txt lists all metrics that the rules and the dashboard
// use; test/e2e compares the list with the metrics of a cluster.
const artifacts = "../../artifacts/monitoring"

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(artifacts, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// rules returns the alert rules, which must be valid.
func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse(
		read(t, "alerts.yaml"), false, model.UTF8Validation, parser.NewParser(parser.Options{}),
	)
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil {
		t.FailNow()
	}
	var all []rulefmt.Rule
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// panel has the checked fields of a panel of the dashboard.
type panel struct {
	ID          int
	Title       string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct {
		Title, UID string
		Panels     []panel
	}
	decoder := json.NewDecoder(bytes.NewReader(read(t, "dashboard.json")))
	if err := decoder.Decode(&dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" || len(dashboard.Panels) == 0 {
		t.Fatalf("dashboard %q (%q) has %d panels", dashboard.Title, dashboard.UID, len(dashboard.Panels))
	}
	return dashboard.Panels
}

// metricsOf returns the names of the metrics that an expression selects.
func metricsOf(t *testing.T, expression string) []string {
	t.Helper()
	// Grafana replaces the variable with a duration.
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(
		expression, "$__rate_interval", "5m",
	))
	if err != nil {
		t.Errorf("%s: %v", expression, err)
		return nil
	}
	var names []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	if len(names) == 0 || slices.Contains(names, "") {
		t.Errorf("%s selects metrics without a name", expression)
	}
	return names
}

func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, rule := range rules(t) {
		if rule.Alert == "" || seen[rule.Alert] {
			t.Errorf("rule %q has no name, or a duplicate one", rule.Alert+rule.Record)
		}
		seen[rule.Alert] = true
		for _, annotation := range []string{"summary", "description"} {
			if rule.Annotations[annotation] == "" {
				t.Errorf("alert %s has no %s", rule.Alert, annotation)
			}
		}
		if severity := rule.Labels["severity"]; !slices.Contains([]string{"info", "warning", "critical"}, severity) {
			t.Errorf("alert %s has severity %q, want info, warning or critical", rule.Alert, severity)
		}
	}
	for _, alert := range []string{
		"HauloutDrainBlocked", "HauloutMaintenanceTooLong", "HauloutCordonFight", "HauloutAPIUnavailable",
	} {
		if !seen[alert] {
			t.Errorf("alert %s not found", alert)
		}
	}
}

func TestPanels(t *testing.T) {
	ids := map[int]bool{}
	all := panels(t)
	for i, p := range all {
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || ids[p.ID] {
			t.Errorf("panel %d (%q): it needs a title, a description, an expression and a unique ID",
				p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 1 || p.GridPos.H < 1 {
			t.Errorf("panel %q is outside the 24 columns: %+v", p.Title, p.GridPos)
		}
		for _, other := range all[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, other.Title)
			}
		}
	}
}

func TestMetricsAreListed(t *testing.T) {
	var used []string
	for _, rule := range rules(t) {
		used = append(used, metricsOf(t, rule.Expr)...)
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			used = append(used, metricsOf(t, target.Expr)...)
		}
	}
	slices.Sort(used)
	// Prometheus itself generates the metric up.
	used = slices.DeleteFunc(slices.Compact(used), func(name string) bool { return name == "up" })
	want := strings.Join(used, "\n") + "\n"
	if listed := string(read(t, "metrics.txt")); listed != want {
		t.Errorf("metrics.txt differs from the metrics of rules and dashboard; want\n%s", want)
	}
}
