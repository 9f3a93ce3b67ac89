// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Limit is how many of the recorded nodes may be out of service at the same time.
type Limit struct {
	// Key is the label of the domains. If it is empty, all nodes are in one domain.
	Key string
	// Nodes is the number of nodes of a domain that may be out, and Domains the number of domains
	// with such nodes; 0 means any number.
	Nodes, Domains int
	// Soak is the time for which a node still counts as out after its return.
	Soak time.Duration
}

// returned is a node that is back in service since a time.
type returned struct {
	node *corev1.Node
	at   time.Time
}

// Outages describes each time at which the nodes began to break a limit. A node is out of service
// while it is unschedulable, whoever has made it so, and in the domains of its present labels. It
// also returns the largest number of nodes that were out at the same time, without those that soak.
func Outages(log Log, limits ...Limit) (found []string, most int) {
	out, back := map[string]*corev1.Node{}, map[string]returned{}
	broken := make([]bool, len(limits))
	for o, node := range Each[*corev1.Node](log) {
		last, wasBack := back[node.Name]
		delete(back, node.Name)
		switch _, wasOut := out[node.Name]; {
		case o.Type == watch.Deleted || node.Spec.Unschedulable:
		case wasOut:
			back[node.Name] = returned{node: node, at: o.Seen}
		case wasBack:
			back[node.Name] = returned{node: node, at: last.at}
		}
		delete(out, node.Name)
		if o.Type != watch.Deleted && node.Spec.Unschedulable {
			out[node.Name] = node
		}
		most = max(most, len(out))
		for i, limit := range limits {
			counted := maps.Clone(out)
			for name, r := range back {
				if o.Seen.Sub(r.at) < limit.Soak {
					counted[name] = r.node
				}
			}
			text := limit.brokenBy(counted)
			if text != "" && !broken[i] {
				found = append(found, o.Seen.UTC().Format("15:04:05.000 ")+text)
			}
			broken[i] = text != ""
		}
	}
	return found, most
}

// brokenBy describes how nodes that are out break the limit; "" if they do not.
func (l Limit) brokenBy(out map[string]*corev1.Node) string {
	domains := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(out)) {
		domain := out[name].Labels[l.Key]
		domains[domain] = append(domains[domain], name)
	}
	if l.Domains > 0 && len(domains) > l.Domains {
		return fmt.Sprintf("nodes of %d domains of %s are out of service, %d allowed: %v", len(domains), l.Key, l.Domains, domains)
	}
	for domain, names := range domains {
		if l.Nodes > 0 && len(names) > l.Nodes {
			return fmt.Sprintf("%d nodes are out of service in domain %q, %d allowed: %s", len(names), domain, l.Nodes, strings.Join(names, ", "))
		}
	}
	return ""
}
