// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitoring checks the alert rules, the dashboard and the scrape jobs of
// artifacts/monitoring with the libraries of Prometheus. It is a separate module because these
// libraries have more than a hundred dependencies.
package monitoring

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// metricsOf returns the names of the metrics that an expression selects.
func metricsOf(t *testing.T, expression string) []string {
	t.Helper()
	var names []string
	inspect(t, expression, func(node parser.Node) {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
	})
	if len(names) == 0 || slices.Contains(names, "") {
		t.Errorf("%s selects metrics without a name", expression)
	}
	return names
}

// inspect calls visit with each part of an expression, which must be valid.
func inspect(t *testing.T, expression string, visit func(parser.Node)) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", expression, err)
		return
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		visit(node)
		return nil
	})
}

// queryInText finds the expressions that the text of an annotation evaluates.
var queryInText = regexp.MustCompile(`query "((?:[^"\\]|\\.)*)"`)

// expressions returns all expressions of the rules and of the dashboard by a name for errors.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, rule := range rules(t) {
		all["alert "+rule.Alert] = rule.Expr
		for name, text := range rule.Annotations {
			for i, match := range queryInText.FindAllStringSubmatch(text, -1) {
				expression, err := strconv.Unquote(`"` + match[1] + `"`)
				if err != nil {
					t.Fatalf("alert %s, %s: %v", rule.Alert, name, err)
				}
				all[fmt.Sprintf("alert %s, query %d of the %s", rule.Alert, i, name)] = expression
			}
		}
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all[fmt.Sprintf("panel %q, %s", p.Title, target.RefID)] = target.Expr
		}
	}
	for _, annotation := range d.Annotations.List {
		all[fmt.Sprintf("annotation %q", annotation.Name)] = annotation.Expr
	}
	for _, variable := range d.Templating.List {
		if variable.Type == "query" {
			all[fmt.Sprintf("variable %q", variable.Name)] = variable.metric(t)
		}
	}
	return all
}

func TestRules(t *testing.T) {
	const runbook = "docs/monitoring.md#"
	page := string(read(t, "../../docs/monitoring.md"))
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
		// Each alert has a section of its own, so that a reader finds it by the name of the alert.
		if got := rule.Annotations["runbook"]; got != runbook+strings.ToLower(rule.Alert) {
			t.Errorf("alert %s has the runbook %q, want %s", rule.Alert, got, runbook+strings.ToLower(rule.Alert))
		}
		// No site has the page, so a link would be dead until the user sets one.
		if url := rule.Annotations["runbook_url"]; url != "" {
			t.Errorf("alert %s has the runbook_url %q, which no site serves", rule.Alert, url)
		}
		if !strings.Contains(page, "\n### "+rule.Alert+"\n") {
			t.Errorf("docs/monitoring.md has no section about alert %s", rule.Alert)
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

func TestMetricsAreListed(t *testing.T) {
	var used []string
	for _, expression := range expressions(t) {
		used = append(used, metricsOf(t, expression)...)
	}
	slices.Sort(used)
	// Prometheus itself generates the metric up.
	used = slices.DeleteFunc(slices.Compact(used), func(name string) bool { return name == "up" })
	want := strings.Join(used, "\n") + "\n"
	if listed := string(read(t, "metrics.txt")); listed != want {
		t.Errorf("metrics.txt differs from the metrics of rules and dashboard; want\n%s", want)
	}
}

// documented returns the labels of each metric of docs/metrics.md.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, row := range regexp.MustCompile(
		"(?m)^\\| `(haulout_[a-z_]+)` \\| (counter|gauge|histogram) \\| ([^|]*) \\|",
	).FindAllStringSubmatch(string(read(t, "../../docs/metrics.md")), -1) {
		var names []string
		for _, label := range strings.Fields(row[3]) {
			names = append(names, strings.Trim(label, "`,"))
		}
		if row[2] == "histogram" {
			all[row[1]+"_bucket"] = append(names, "le")
			continue
		}
		all[row[1]] = names
	}
	if len(all) < 30 {
		t.Fatalf("found only %d metrics in docs/metrics.md", len(all))
	}
	return all
}

// TestMetricsAndLabelsExist compares the metrics of Haulout in all expressions with
// docs/metrics.md, which is generated from the code: an expression with a wrong label is valid and
// never true.
func TestMetricsAndLabelsExist(t *testing.T) {
	known := documented(t)
	for where, expression := range expressions(t) {
		possible := []string{"job", "instance"}
		for _, name := range metricsOf(t, expression) {
			labels, ok := known[name]
			if !ok && strings.HasPrefix(name, "haulout_") {
				t.Errorf("%s: docs/metrics.md does not list %s", where, name)
			}
			possible = append(possible, labels...)
		}
		inspect(t, expression, func(node parser.Node) {
			switch part := node.(type) {
			case *parser.VectorSelector:
				for _, matcher := range part.LabelMatchers {
					labels, ours := known[part.Name]
					if ours && matcher.Name != "__name__" && !slices.Contains(append(labels, "job", "instance"), matcher.Name) {
						t.Errorf("%s: %s has no label %s", where, part.Name, matcher.Name)
					}
				}
			case *parser.AggregateExpr:
				for _, label := range part.Grouping {
					if strings.Contains(expression, "haulout_") && !slices.Contains(possible, label) {
						t.Errorf("%s: no metric has the label %s, by which it groups", where, label)
					}
				}
			}
		})
	}
}
