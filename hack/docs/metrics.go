// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"go/ast"
	"io"
	"slices"
	"strings"
)

const metricsHeader = `<!-- Written by hack/update-docs.sh from the code. Do not edit. -->
# Metrics

Every replica serves metrics at ` + "`/metrics`" + `, to users with the verb ` + "`get`" + ` on that non-resource
URL. Only the leader counts; the other replicas report zeros. A replica also serves the metrics of
the Kubernetes libraries: ` + "`apiserver_*`, `etcd_*`, `workqueue_*`, `rest_client_*`,\n`leader_election_master_status`, `process_*`, `go_*`" + `.

[Monitoring](monitoring.md) shows how to scrape them, and has alert rules and a dashboard. All have
the stability ALPHA: a release may change a name, and its notes then say so.
`

const metricsTable = `
| metric | type | labels | meaning |
|---|---|---|---|
`

// programs are the programs with their own metrics, and the prefixes of the metric names. All
// metrics without one of these prefixes belong to the first program.
var programs = []struct{ title, prefix, where string }{
	{"The server", "", ""},
	{"The node agent", "haulout_node_agent_", "The agent of each node serves them at `metricsBindAddress` of [its\nconfiguration](node-agent.md), by default only on the loopback address.\n"},
	{"The scheduler", "haulout_preemption_", "haulout-scheduler serves them with those of kube-scheduler, see [preemption](preemption.md).\n"},
}

// programOf returns the index of the program that serves a metric.
func programOf(name string) int {
	for i, p := range programs {
		if p.prefix != "" && strings.HasPrefix(name, p.prefix) {
			return i
		}
	}
	return 0
}

// metric is a metric of a program.
type metric struct {
	name, kind, stability, help string
	labels                      []string
}

// writeMetrics writes the page about metrics.
func writeMetrics(out io.Writer, code *source) error {
	metrics, err := metricsOf(code)
	if err != nil {
		return err
	}
	page := bufio.NewWriter(out)
	fmt.Fprint(page, metricsHeader)
	for i, program := range programs {
		fmt.Fprintf(page, "\n## %s\n", program.title)
		if program.where != "" {
			fmt.Fprint(page, "\n"+program.where)
		}
		fmt.Fprint(page, metricsTable)
		for _, m := range metrics {
			if programOf(m.name) != i {
				continue
			}
			labels := make([]string, 0, len(m.labels))
			for _, label := range m.labels {
				labels = append(labels, "`"+label+"`")
			}
			fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(labels, ", "), cell(m.help))
		}
	}
	return page.Flush()
}

// metricsOf finds the calls that create metrics, as in metrics.NewGaugeVec(&metrics.GaugeOpts{…},
// []string{…}).
func metricsOf(code *source) ([]metric, error) {
	var found []metric
	var failed error
	for _, file := range code.files {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			options, kind := optionsOf(call.Args[0])
			if options == nil {
				return true
			}
			m, err := code.metricOf(call, options, kind)
			if err != nil {
				failed = err
			}
			found = append(found, m)
			return true
		})
	}
	slices.SortFunc(found, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return found, failed
}

// optionsOf returns the literal with a metric's options, and the kind of the metric.
func optionsOf(argument ast.Expr) (options *ast.CompositeLit, kind string) {
	reference, ok := argument.(*ast.UnaryExpr)
	if !ok {
		return nil, ""
	}
	options, ok = reference.X.(*ast.CompositeLit)
	if !ok {
		return nil, ""
	}
	typeName, ok := options.Type.(*ast.SelectorExpr)
	if !ok {
		return nil, ""
	}
	kind, ok = map[string]string{"CounterOpts": "counter", "GaugeOpts": "gauge", "HistogramOpts": "histogram", "SummaryOpts": "summary"}[typeName.Sel.Name]
	if !ok {
		return nil, ""
	}
	return options, kind
}

func (s *source) metricOf(call *ast.CallExpr, options *ast.CompositeLit, kind string) (metric, error) {
	m := metric{kind: kind}
	var parts [3]string
	for _, element := range options.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return m, s.errorAt(element, "the options of a metric must be given by name")
		}
		key := field.Key.(*ast.Ident).Name
		into := map[string]*string{"Namespace": &parts[0], "Subsystem": &parts[1], "Name": &parts[2], "Help": &m.help}[key]
		if stability, ok := field.Value.(*ast.SelectorExpr); ok && key == "StabilityLevel" {
			m.stability = stability.Sel.Name
		}
		if into == nil {
			continue
		}
		if *into, ok = text(field.Value); !ok {
			return m, s.errorAt(field, "%s of a metric must be a literal, so that it can be written to the page about metrics", key)
		}
	}
	m.name = strings.Join(slices.DeleteFunc(parts[:], func(part string) bool { return part == "" }), "_")
	if m.name == "" || m.help == "" {
		return m, s.errorAt(options, "a metric needs a name and a help text")
	}
	if m.stability != "ALPHA" {
		return m, s.errorAt(options, "%s has stability %q, but the page says that all are ALPHA", m.name, m.stability)
	}
	if len(call.Args) < 2 {
		return m, nil
	}
	labels, ok := call.Args[1].(*ast.CompositeLit)
	if !ok {
		return m, s.errorAt(call.Args[1], "the labels of %s must be a literal", m.name)
	}
	for _, element := range labels.Elts {
		label, ok := text(element)
		if !ok {
			return m, s.errorAt(element, "a label of %s must be a literal", m.name)
		}
		m.labels = append(m.labels, label)
	}
	return m, nil
}
