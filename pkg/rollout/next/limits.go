// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// maxNames is the number of nodes that a message names.
const maxNames = 3

// limit is a limit with what takes its places.
type limit struct {
	// name is what users know the limit by.
	name string
	// key is the label of its domains; "" for one domain.
	key string
	// covers reports whether the limit counts a node.
	covers func(*Node) bool
	// maxNodes returns the number of nodes of a domain that may be out; total is their number.
	maxNodes func(total int) int
	// total and out count the nodes by domain; missing nodes count in every one.
	total, out map[string]int
	missing    int

	// maxDomains is the number of open domains; 0 if this is a limit of nodes. open are those in
	// which units run or soak, begun those in which there were others before.
	maxDomains  int
	open, begun map[string]bool
}

func newLimit(name, key string, covers func(*Node) bool, maxNodes func(int) int) *limit {
	return &limit{name: name, key: key, covers: covers, maxNodes: maxNodes, total: map[string]int{}, out: map[string]int{}}
}

// readLimits makes the limits of the rollout and those of the cluster, and counts what is out.
func (d *decider) readLimits() {
	members := make(map[string]bool, len(d.Members))
	for _, m := range d.Members {
		members[m.Node] = true
	}
	isMember := func(n *Node) bool { return members[n.Name] }
	for i := range d.Object.Spec.Limits {
		spec := &d.Object.Spec.Limits[i]
		name := fmt.Sprintf("limits[%d]", i)
		if spec.MaxDomains != nil {
			d.limits = append(d.limits, &limit{
				name: name, key: spec.TopologyKey, maxDomains: int(*spec.MaxDomains), open: map[string]bool{}, begun: map[string]bool{},
			})
			continue
		}
		d.limits = append(d.limits, newLimit(name, spec.TopologyKey, isMember, maximum(spec.MaxUnavailable)))
	}
	percent := intstr.FromString(fmt.Sprintf("%d%%", d.cluster.MaxUnavailablePercent))
	d.limits = append(d.limits,
		newLimit("--max-unavailable-nodes of the server", "", func(*Node) bool { return true }, maximum(&percent)),
		newLimit("the limit of control-plane nodes", "", func(n *Node) bool { return n.controlPlane }, func(int) int { return 1 }))
	for _, l := range d.limits {
		d.count(l)
	}
}

// maximum returns the function that computes how many nodes of a domain may be out: at least 1. A
// value that cannot be parsed is 1, too.
func maximum(value *intstr.IntOrString) func(int) int {
	return func(total int) int {
		scaled, err := intstr.GetScaledValueFromIntOrPercent(value, total, false)
		if err != nil {
			return 1
		}
		return max(1, scaled)
	}
}

func (d *decider) count(l *limit) {
	if l.maxDomains > 0 {
		d.openDomains(l)
		return
	}
	l.missing = len(d.cluster.missing)
	for i := range d.cluster.Nodes {
		if n := &d.cluster.Nodes[i]; l.covers(n) {
			l.total[n.Labels[l.key]]++
			if n.isOut() {
				l.out[n.Labels[l.key]]++
			}
		}
	}
}

// openDomains notes in which domains the rollout is at work, and was before.
func (d *decider) openDomains(l *limit) {
	for _, at := range d.running {
		for _, name := range at.nodes {
			if n := d.cluster.nodes[name]; n != nil && !at.failed {
				l.open[n.Labels[l.key]] = true
			}
		}
	}
	for _, m := range d.Members {
		if n := d.cluster.nodes[m.Node]; n != nil {
			if _, done := d.history.done[n.UID]; done {
				l.begun[n.Labels[l.key]] = true
			}
		}
	}
}

// costs returns, by domain, how many nodes of a unit would be out in addition, and how many of them
// count as out already. A node that is visibly out costs nothing. One that is only taken, which the
// Node does not show yet or any more, costs a place although it is counted.
func (l *limit) costs(u *Unit) (added, counted map[string]int) {
	added, counted = map[string]int{}, map[string]int{}
	for _, n := range u.Nodes {
		if !l.covers(n) || n.down != "" {
			continue
		}
		added[n.Labels[l.key]]++
		if n.taken != "" {
			counted[n.Labels[l.key]]++
		}
	}
	return added, counted
}

// domainsOf returns the domains of a unit, sorted.
func (l *limit) domainsOf(u *Unit) []string {
	var domains []string
	for _, n := range u.Nodes {
		domains = append(domains, n.Labels[l.key])
	}
	slices.Sort(domains)
	return slices.Compact(domains)
}

// excludes returns why the unit would not fit even if no other node was out; "" if it would.
func (l *limit) excludes(u *Unit) string {
	if l.maxDomains > 0 {
		if domains := l.domainsOf(u); len(domains) > l.maxDomains {
			return fmt.Sprintf("it has nodes in %d domains of %s; %s allows %d", len(domains), l.key, l.name, l.maxDomains)
		}
		return ""
	}
	sizes := map[string]int{}
	for _, n := range u.Nodes {
		if l.covers(n) {
			sizes[n.Labels[l.key]]++
		}
	}
	for domain, size := range sizes {
		if allowed := l.maxNodes(l.total[domain]); size > allowed {
			return fmt.Sprintf("it has %s%s; %s allows %d", wording.Count(size, "node"), l.in(domain), l.name, allowed)
		}
	}
	return ""
}

// refuses returns in which domain the limit keeps a unit from starting, and whether it does.
func (l *limit) refuses(u *Unit) (domain string, refused bool) {
	if l.maxDomains > 0 {
		domains := len(l.open)
		for _, domain = range l.domainsOf(u) {
			if !l.open[domain] {
				domains++
			}
		}
		return domain, domains > l.maxDomains
	}
	added, counted := l.costs(u)
	least, refused := "", false
	for domain, n := range added {
		if l.out[domain]-counted[domain]+n+l.missing > l.maxNodes(l.total[domain]) && (!refused || domain < least) {
			least, refused = domain, true
		}
	}
	return least, refused
}

// start counts the nodes of a unit that starts.
func (l *limit) start(u *Unit) {
	if l.maxDomains > 0 {
		for _, domain := range l.domainsOf(u) {
			l.open[domain] = true
		}
		return
	}
	added, counted := l.costs(u)
	for domain, n := range added {
		l.out[domain] += n - counted[domain]
	}
}

// refusal describes for people who takes the places of a limit in a domain.
func (d *decider) refusal(l *limit, domain string) string {
	if l.maxDomains > 0 {
		return fmt.Sprintf("%s allows %s of %s, and units run in %s", l.name, wording.Count(l.maxDomains, "domain"), l.key,
			names(slices.Collect(maps.Keys(l.open))))
	}
	var takers []string
	for i := range d.cluster.Nodes {
		if n := &d.cluster.Nodes[i]; l.covers(n) && n.isOut() && n.Labels[l.key] == domain {
			takers = append(takers, n.Name+" "+n.why())
		}
	}
	for name := range d.cluster.missing {
		takers = append(takers, name+" does not exist, but may return")
	}
	return fmt.Sprintf("%s allows %s out of service%s: %s", l.name, wording.Count(l.maxNodes(l.total[domain]), "node"), l.in(domain),
		names(takers))
}

func (l *limit) in(domain string) string {
	switch {
	case l.key == "":
		return ""
	case domain == "":
		return " without the label " + l.key
	}
	return fmt.Sprintf(" with %s=%s", l.key, domain)
}

// names joins texts in their order, and cuts a long list.
func names(all []string) string {
	slices.Sort(all)
	if rest := len(all) - maxNames; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNames], ", "), rest)
	}
	return strings.Join(all, ", ")
}
