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

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// mayCreate returns an error if the user may not create maintenances. All other checks would only
// delay this answer. If the access review fails, the server decides when the object is created.
func mayCreate(ctx context.Context, c clients) error {
	const resource = "nodemaintenances"
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "create", Group: v1alpha1.GroupName, Version: v1alpha1.SchemeGroupVersion.Version, Resource: resource,
		},
	}}
	reviewed, err := c.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil || reviewed.Status.Allowed {
		return nil
	}
	return fmt.Errorf("you may not create %s.%s. An administrator of the cluster can grant you the ClusterRole haulout-maintenance-operator. Nothing was changed",
		resource, v1alpha1.GroupName)
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

// namesIn returns the nodes that a selector names; none if it may match other nodes, too.
func namesIn(selector *corev1.NodeSelector) []string {
	var names []string
	for _, term := range selector.NodeSelectorTerms {
		at := slices.IndexFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn
		})
		if at < 0 {
			return nil
		}
		names = append(names, term.MatchFields[at].Values...)
	}
	return names
}

// selectedNodes reads the nodes that a selector may match: all nodes or, without the right to list
// them, those that it names.
func selectedNodes(ctx context.Context, c clients, selector *corev1.NodeSelector) ([]corev1.Node, error) {
	nodes, err := allNodes(ctx, c)
	names := namesIn(selector)
	if !apierrors.IsForbidden(err) || len(names) == 0 {
		return nodes, err
	}
	for _, name := range names {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case answer.ObjectGone(err):
		case err != nil:
			return nil, err
		default:
			nodes = append(nodes, *node)
		}
	}
	return nodes, nil
}

// dangerOf returns the number of selected nodes, and the fact about them that the user must
// confirm, or "".
func dangerOf(selector *corev1.NodeSelector, nodes []corev1.Node) (matched int, danger string, err error) {
	matcher, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return 0, "", err
	}
	controlPlane, controlPlaneMatched := 0, 0
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
		return matched, fmt.Sprintf("This selects all nodes of the cluster (%d).", len(nodes)), nil
	case controlPlane > 0 && controlPlaneMatched == controlPlane:
		return matched, fmt.Sprintf("This selects all control-plane nodes of the cluster (%d).", controlPlane), nil
	}
	return matched, "", nil
}

// nodeChecks are the settings of checkNodes.
type nodeChecks struct {
	stage v1alpha1.NodeMaintenanceStage
	// yes omits the confirmation, allowEmpty the error about a selector that matches no node.
	yes, allowEmpty bool
	// preview is set if the command only previews a drain, stored if the maintenance exists: its
	// nodes may have been deleted.
	preview, stored bool
}

// asks reports whether the user must confirm that all nodes are selected: only the stages Cordon
// and Drain take nodes out of service.
func (n nodeChecks) asks() bool {
	return !n.yes && n.stage != v1alpha1.NodeMaintenanceStageIdle && n.stage != v1alpha1.NodeMaintenanceStageComplete
}

// checkNodes returns an error if a named node does not exist or the selector matches no node. It
// asks for a confirmation if the user selects all nodes or all control-plane nodes. A user who may
// not list nodes can name them.
func (e *environment) checkNodes(ctx context.Context, c clients, choice *chosen, checks nodeChecks) error {
	nodes, err := allNodes(ctx, c)
	danger := ""
	switch names := namesIn(choice.selector); {
	case apierrors.IsForbidden(err) && len(names) > 0:
		danger, err = checkNamed(ctx, c, names, checks)
	case apierrors.IsForbidden(err):
		danger, err = "You may not list nodes, so this may select all nodes of the cluster.", nil
	case err == nil:
		danger, err = checkListed(choice, nodes, checks)
	}
	if err != nil || danger == "" || !checks.asks() {
		return err
	}
	return e.confirm(ctx, danger, "Without a terminal, this needs --yes.")
}

// checkNamed reads the named nodes one by one. A node that the user may not read is not checked:
// the right to put it under maintenance is a different one, and the server checks that.
func checkNamed(ctx context.Context, c clients, names []string, checks nodeChecks) (danger string, err error) {
	for _, name := range names {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err), answer.ObjectGone(err) && checks.stored:
		case answer.ObjectGone(err):
			return "", fmt.Errorf("node %q not found", name)
		case err != nil:
			return "", err
		case protocol.IsControlPlane(node):
			danger = fmt.Sprintf("You may not list nodes, and node %s is a control-plane node, so this may select all control-plane nodes of the cluster.", name)
		}
	}
	return danger, nil
}

// checkListed checks a selection with all nodes of the cluster.
func checkListed(choice *chosen, nodes []corev1.Node, checks nodeChecks) (danger string, err error) {
	existing := make([]string, 0, len(nodes))
	for i := range nodes {
		existing = append(existing, nodes[i].Name)
	}
	for _, name := range choice.names {
		if !slices.Contains(existing, name) {
			return "", fmt.Errorf("node %q not found%s (to list all nodes: kubectl get nodes)", name, didYouMean(nearest(name, existing)))
		}
	}
	matched, danger, err := dangerOf(choice.selector, nodes)
	if err == nil && matched == 0 && choice.labels != "" && !checks.allowEmpty {
		err = fmt.Errorf("no node matches --selector=%s%s", choice.labels, didYouMean(nearestLabel(choice.selector, nodes)))
		if !checks.preview {
			err = fmt.Errorf("%w (to select nodes that get the labels later: --allow-empty)", err)
		}
	}
	return danger, err
}

// nearestLabel returns the label of a node that is most similar to one that the selector requires;
// "" if none is similar.
func nearestLabel(selector *corev1.NodeSelector, nodes []corev1.Node) string {
	values := map[string]sets.Set[string]{}
	for i := range nodes {
		for key, value := range nodes[i].Labels {
			if values[key] == nil {
				values[key] = sets.New[string]()
			}
			values[key].Insert(value)
		}
	}
	for _, term := range selector.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			switch {
			case r.Operator != corev1.NodeSelectorOpIn || len(r.Values) != 1 || values[r.Key].Has(r.Values[0]):
			case values[r.Key] == nil:
				if key := nearest(r.Key, sets.List(sets.KeySet(values))); key != "" {
					return key + "=" + r.Values[0]
				}
			default:
				if value := nearest(r.Values[0], sets.List(values[r.Key])); value != "" {
					return r.Key + "=" + value
				}
			}
		}
	}
	return ""
}

// confirm asks the user whether to continue after a sentence about the danger. Without a terminal
// it returns an error with a sentence about what the user can do instead.
func (e *environment) confirm(ctx context.Context, danger, instead string) error {
	if !e.interactive() {
		// In an error, the sentence follows "error: ".
		return fmt.Errorf("%s %s Nothing was changed", strings.ToLower(danger[:1])+danger[1:], instead)
	}
	e.screen(e.ErrOut).Ask(danger + " Continue? [y/N] ")
	typed := make(chan string, 1)
	go func() {
		text, err := bufio.NewReader(e.In).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			text = ""
		}
		typed <- text
	}()
	select {
	case text := <-typed:
		if !strings.HasSuffix(text, "\n") {
			// The user ended the input with Ctrl-D, which does not end the line.
			_, _ = fmt.Fprintln(e.ErrOut)
		}
		if text = strings.ToLower(strings.TrimSpace(text)); text == "y" || text == "yes" {
			return nil
		}
		return errors.New("not confirmed; nothing was changed")
	case <-ctx.Done():
		e.screen(e.ErrOut).Println(screen.Line{})
		return ctx.Err()
	}
}
