// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// chosen is the user's selection of nodes.
type chosen struct {
	// names are the names on the command line; empty if the user selects nodes by label.
	names    []string
	selector *corev1.NodeSelector
	// title is the prefix of a generated name.
	title string
}

func chooseNodes(args []string, labelSelector string) (*chosen, error) {
	switch {
	case len(args) > 0 && labelSelector != "":
		return nil, errors.New("node names and --selector cannot be combined")
	case labelSelector != "":
		return chooseByLabels(labelSelector)
	case len(args) == 0:
		return nil, errors.New("no nodes given: pass node names or --selector (-l)")
	}
	c := &chosen{selector: &corev1.NodeSelector{}}
	for _, arg := range args {
		name := nodeName(arg)
		if name == "" {
			return nil, fmt.Errorf("invalid node name %q", arg)
		}
		if slices.Contains(c.names, name) {
			continue
		}
		c.names = append(c.names, name)
		c.selector.NodeSelectorTerms = append(c.selector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
		})
	}
	c.title = c.names[0]
	if more := len(c.names) - 1; more > 0 {
		c.title += fmt.Sprintf("-and-%d-more", more)
	}
	return c, nil
}

// nodeName removes the kind from a name such as node/node-003.
func nodeName(arg string) string { return withoutKind(arg, "node", "nodes", "no") }

func withoutKind(arg string, kinds ...string) string {
	if kind, name, found := strings.Cut(arg, "/"); found && slices.Contains(kinds, kind) {
		return name
	}
	return arg
}

var operators = map[selection.Operator]corev1.NodeSelectorOperator{
	selection.Equals: corev1.NodeSelectorOpIn, selection.DoubleEquals: corev1.NodeSelectorOpIn, selection.In: corev1.NodeSelectorOpIn,
	selection.NotEquals: corev1.NodeSelectorOpNotIn, selection.NotIn: corev1.NodeSelectorOpNotIn,
	selection.Exists: corev1.NodeSelectorOpExists, selection.DoesNotExist: corev1.NodeSelectorOpDoesNotExist,
	selection.GreaterThan: corev1.NodeSelectorOpGt, selection.LessThan: corev1.NodeSelectorOpLt,
}

func chooseByLabels(text string) (*chosen, error) {
	parsed, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("invalid --selector: %w", err)
	}
	requirements, _ := parsed.Requirements()
	var term corev1.NodeSelectorTerm
	for _, r := range requirements {
		requirement := corev1.NodeSelectorRequirement{Key: r.Key(), Operator: operators[r.Operator()]}
		if r.Operator() != selection.Exists && r.Operator() != selection.DoesNotExist {
			requirement.Values = r.ValuesUnsorted()
			slices.Sort(requirement.Values)
		}
		term.MatchExpressions = append(term.MatchExpressions, requirement)
	}
	if len(term.MatchExpressions) == 0 {
		return nil, errors.New("invalid --selector: an empty selector matches every node; " +
			"pass node names, or select a label that all nodes have (kubernetes.io/os)")
	}
	return &chosen{selector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}, title: title(text)}, nil
}

// maxTitle leaves room for the suffix: many tools show 63 characters of a name.
const maxTitle = 57

// title converts a text to a prefix of a name.
func title(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-")
}

// nameFor generates a name that is easy to read and type.
func (e *environment) nameFor(title string) string {
	if len(title) > maxTitle {
		title = title[:maxTitle]
	}
	if title = strings.Trim(title, "-."); title == "" {
		title = "nodes"
	}
	return title + "-" + e.suffix()
}

// allNodes reads the nodes of the cluster, page by page.
func allNodes(ctx context.Context, c clients) ([]corev1.Node, error) {
	var nodes []corev1.Node
	for options := (metav1.ListOptions{Limit: 500}); ; {
		page, err := c.kube.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return nodes, nil
		}
	}
}

// dangerOf returns the fact about the selected nodes that the user must confirm, or "".
func dangerOf(selector *corev1.NodeSelector, nodes []corev1.Node) (string, error) {
	matcher, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return "", err
	}
	matched, controlPlane, controlPlaneMatched := 0, 0, 0
	for i := range nodes {
		matches, control := matcher.Match(&nodes[i]), protocol.IsControlPlane(&nodes[i])
		if matches {
			matched++
		}
		if control {
			controlPlane++
		}
		if matches && control {
			controlPlaneMatched++
		}
	}
	switch {
	case len(nodes) > 0 && matched == len(nodes):
		return fmt.Sprintf("This selects all nodes of the cluster (%d).", len(nodes)), nil
	case controlPlane > 0 && controlPlaneMatched == controlPlane:
		return fmt.Sprintf("This selects all control-plane nodes of the cluster (%d).", controlPlane), nil
	}
	return "", nil
}

// checkNodes returns an error if a named node does not exist. It asks for a confirmation if the
// user selects all nodes or all control-plane nodes.
func (e *environment) checkNodes(ctx context.Context, c clients, choice *chosen, stage v1alpha1.NodeMaintenanceStage, yes bool) error {
	nodes, err := allNodes(ctx, c)
	var danger string
	switch {
	case apierrors.IsForbidden(err):
		danger = "You may not list nodes, so this may select all nodes of the cluster."
	case err != nil:
		return err
	default:
		for _, name := range choice.names {
			if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name }) {
				return fmt.Errorf("node %q not found; kubectl get nodes lists all nodes", name)
			}
		}
		if danger, err = dangerOf(choice.selector, nodes); err != nil {
			return err
		}
	}
	if danger == "" || yes || stage == v1alpha1.NodeMaintenanceStageIdle || stage == v1alpha1.NodeMaintenanceStageComplete {
		return nil
	}
	return e.confirm(ctx, danger)
}

// confirm asks the user whether to continue. Without a terminal it returns an error.
func (e *environment) confirm(ctx context.Context, danger string) error {
	if !e.interactive() {
		return fmt.Errorf("%s Without a terminal, this needs --yes. Nothing was changed", danger)
	}
	_, _ = fmt.Fprintf(e.ErrOut, "%s Continue? [y/N] ", danger)
	answer := make(chan string, 1)
	go func() {
		text, err := bufio.NewReader(e.In).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			text = ""
		}
		answer <- strings.ToLower(strings.TrimSpace(text))
	}()
	select {
	case text := <-answer:
		if text == "y" || text == "yes" {
			return nil
		}
		return errors.New("not confirmed; nothing was changed")
	case <-ctx.Done():
		_, _ = fmt.Fprintln(e.ErrOut)
		return ctx.Err()
	}
}
