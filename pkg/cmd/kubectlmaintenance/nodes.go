// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/drainer"
)

// chosen is the user's selection of nodes.
type chosen struct {
	// names are the names on the command line; empty if the user selects nodes by label.
	names    []string
	selector *corev1.NodeSelector
	// labels is the label selector on the command line; empty if the user names nodes.
	labels string
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
	c := &chosen{}
	for _, arg := range args {
		name := nodeName(arg)
		if name == "" {
			return nil, fmt.Errorf("invalid node name %q", arg)
		}
		if !slices.Contains(c.names, name) {
			c.names = append(c.names, name)
		}
	}
	c.selector = drainer.SelectNames(c.names...)
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

func chooseByLabels(text string) (*chosen, error) {
	selector, err := drainer.SelectLabels(text)
	switch {
	case errors.Is(err, drainer.ErrMatchesAll):
		return nil, fmt.Errorf("invalid --selector: %w; pass node names, or select a label that all nodes have (kubernetes.io/os)", err)
	case err != nil:
		return nil, fmt.Errorf("invalid --selector: %w", err)
	}
	return &chosen{selector: selector, labels: text, title: title(text)}, nil
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
