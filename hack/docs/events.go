// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"io"
	"regexp"
	"slices"
	"strings"
)

const eventsHeader = `<!-- Written by hack/update-docs.sh from the code. Do not edit. -->
# Events

Haulout sends one event for each change. If the same thing happens again within minutes, the count
of that event rises. The events are in the host cluster. ` + "`kubectl describe`" + ` shows the events of a
node, a pod or a NodeMaintenance. This command shows all events with one reason:

` + "```sh\nkubectl get events -A --field-selector reason=EvacuationBlocked\n```" + `

Events about pods are in the namespaces of the pods, events about nodes and NodeMaintenances are in
` + "`default`. A pod that leaves gets one event, `Evicted` or `Replaced`" + `, with the NodeMaintenance and
its reason.

| reason | type | about | when |
|---|---|---|---|
`

// eventReason is the reason of an event.
type eventReason struct {
	value, about, meaning string
	normal, warning       bool
}

// defaultAbout maps the functions and literals that create events to the object of the event. The
// key begins with the package if the name is only valid there.
var defaultAbout = map[string]string{
	"nodeEvent": "node", "tell": "node", "maintenanceEvent": "NodeMaintenance", "evacuation.event": "pod", "deployment.event": "Deployment",
}

// aboutSentence is the last sentence of a reason's comment if defaultAbout does not determine the
// object.
var aboutSentence = regexp.MustCompile(` About (?:the|a|its) ([A-Za-z ]+)\.`)

// writeEvents writes the page about events.
func writeEvents(out io.Writer, code *source) error {
	reasons, err := eventsOf(code)
	if err != nil {
		return err
	}
	page := bufio.NewWriter(out)
	fmt.Fprint(page, eventsHeader)
	for _, r := range reasons {
		kind := "Normal"
		switch {
		case r.normal && r.warning:
			kind = "Normal, Warning"
		case r.warning:
			kind = "Warning"
		}
		fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", r.value, kind, r.about, cell(r.meaning))
	}
	return page.Flush()
}

// eventsOf finds the constants EventX in files with event reasons, and the calls that use them.
func eventsOf(code *source) ([]eventReason, error) {
	var found []eventReason
	for _, file := range code.files {
		uses := code.usesIn(file.Name.Name)
		for _, declaration := range file.Decls {
			constants, ok := declaration.(*ast.GenDecl)
			if !ok || constants.Tok != token.CONST {
				continue
			}
			for _, spec := range constants.Specs {
				constant := spec.(*ast.ValueSpec)
				name := constant.Names[0].Name
				if !strings.HasPrefix(name, "Event") || len(constant.Values) != 1 {
					continue
				}
				value, ok := text(constant.Values[0])
				if !ok {
					continue
				}
				comment := cmp.Or(constant.Doc, constants.Doc)
				_, meaning, ok := strings.Cut(comment.Text(), name+": ")
				if !ok {
					return nil, code.errorAt(constant, "%s needs a comment that describes when the event is sent, as in \"// %s: the node has …\"", name, name)
				}
				r := uses[name]
				meaning = strings.Join(strings.Fields(meaning), " ")
				r.value, r.meaning = value, meaning
				if about := aboutSentence.FindStringSubmatch(" " + meaning); about != nil {
					r.about, r.meaning = about[1], strings.TrimSpace(aboutSentence.ReplaceAllString(" "+meaning, ""))
				}
				if r.about == "" {
					return nil, code.errorAt(constant, "the object of %s is unknown: end its comment with a sentence such as \"About the node.\"", name)
				}
				found = append(found, r)
			}
		}
	}
	slices.SortFunc(found, func(a, b eventReason) int {
		return strings.Compare(strings.ToLower(a.about)+a.value, strings.ToLower(b.about)+b.value)
	})
	return found, nil
}

// usesIn finds the calls and literals of a package that have an event type and a reason.
func (s *source) usesIn(packageName string) map[string]eventReason {
	uses := map[string]eventReason{}
	for _, file := range s.files {
		if file.Name.Name != packageName {
			continue
		}
		ast.Inspect(file, func(node ast.Node) bool {
			var callee ast.Expr
			var arguments []ast.Expr
			switch node := node.(type) {
			case *ast.CallExpr:
				callee, arguments = node.Fun, node.Args
			case *ast.CompositeLit:
				callee, arguments = node.Type, node.Elts
			default:
				return true
			}
			for _, argument := range arguments {
				name, ok := argument.(*ast.Ident)
				if !ok || !strings.HasPrefix(name.Name, "Event") {
					continue
				}
				r := uses[name.Name]
				if about := cmp.Or(defaultAbout[lastName(callee)], defaultAbout[packageName+"."+lastName(callee)]); about != "" && !strings.Contains(r.about, about) {
					r.about = strings.TrimPrefix(r.about+", "+about, ", ")
				}
				has := func(eventType string) bool {
					return slices.ContainsFunc(arguments, func(e ast.Expr) bool { return lastName(e) == eventType })
				}
				r.normal, r.warning = r.normal || has("EventTypeNormal"), r.warning || has("EventTypeWarning")
				uses[name.Name] = r
			}
			return true
		})
	}
	return uses
}

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
