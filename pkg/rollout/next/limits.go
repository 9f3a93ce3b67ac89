// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// limit is a limit with what takes its places.
type limit struct {
	// name is what users know the limit by.
	name string
	// key is the label of its domains; "" for one domain.
	key string
	// controlPlane is true if it only counts control-plane nodes.
	controlPlane bool
	// cluster is the state of the nodes. out are the nodes that are out, except strays, and domains
	// the numbers of all that it counts. Missing nodes count in every domain.
	cluster *Cluster
	out     []*Node
	domains map[string]*places
	missing int
	// strays are nodes that are out and whose labels do not tell where they belong. They count in
	// every domain, too.
	strays map[string]bool
	// buffer is the memory of the last result of costs.
	buffer []cost

	// maxDomains is the number of open domains; 0 if this is a limit of nodes. open are those in
	// which units run or soak, begun those in which there were others before. vanished are the
	// missing nodes of units that run: any of them may open another domain when it returns.
	maxDomains  int
	open, begun map[string]bool
	vanished    []string
}

// places counts the nodes of a domain: all, those that are out (except strays), and those that may
// be out.
type places struct{ total, out, allowed int }

// readLimits makes the limits of the rollout and those of the cluster, and counts what is out.
func (d *decider) readLimits() {
	for i := range d.Object.Spec.Limits {
		spec := &d.Object.Spec.Limits[i]
		l := &limit{name: fmt.Sprintf("limits[%d]", i), key: spec.TopologyKey}
		if spec.MaxDomains == nil {
			d.count(l, spec.MaxUnavailable)
		} else {
			l.maxDomains = int(*spec.MaxDomains)
			d.openDomains(l)
		}
	}
	d.countAll(&limit{name: "--max-unavailable-nodes of the server"}, len(d.cluster.Nodes.all)*d.cluster.MaxUnavailablePercent/100)
	d.countAll(&limit{name: "the limit of control-plane nodes", controlPlane: true}, 1)
}

// count adds a limit of the matching nodes, and counts them. A node of a unit that runs may not
// match any more, because its labels or the selector have changed.
func (d *decider) count(l *limit, value *intstr.IntOrString) {
	strays := maps.Clone(d.cluster.renewed)
	for name := range d.inside {
		if n := d.cluster.Nodes.byName[name]; n != nil && d.cluster.isOut(n) {
			strays[name] = true
		}
	}
	for i := range d.members {
		if name := d.members[i].Name; !d.cluster.renewed[name] {
			delete(strays, name)
		}
	}
	d.add(l, strays)
	for i := range d.members {
		m := &d.members[i]
		p := l.at(l.domainOf(m.Node))
		p.total++
		if m.isOut {
			l.take(m.Node)
		}
	}
	for _, p := range l.domains {
		scaled, _ := intstr.GetScaledValueFromIntOrPercent(value, p.total, false) // 0 if it cannot be parsed
		p.allowed = max(1, scaled)
	}
}

// countAll adds a limit of nodes of the whole cluster, without domains: at least one may be out.
func (d *decider) countAll(l *limit, allowed int) {
	d.add(l, d.cluster.renewed)
	l.at("").allowed = max(1, allowed)
	for _, n := range d.cluster.out() {
		if l.covers(n) {
			l.take(n)
		}
	}
}

// add adds a limit of nodes.
func (d *decider) add(l *limit, strays map[string]bool) {
	l.cluster, l.domains, l.missing, l.strays = d.cluster, map[string]*places{}, len(d.cluster.missing), strays
	d.limits = append(d.limits, l)
}

// take counts a node that is out. A stray counts in every domain anyway.
func (l *limit) take(n *Node) {
	if !l.strays[n.Name] {
		l.at(l.domainOf(n)).out++
		l.out = append(l.out, n)
	}
}

// openDomains adds a limit of domains, and notes in which the rollout is at work, and was before.
func (d *decider) openDomains(l *limit) {
	l.cluster, l.open, l.begun = d.cluster, map[string]bool{}, map[string]bool{}
	for _, u := range d.running {
		for _, name := range u.work.nodes {
			n := d.cluster.Nodes.byName[name]
			switch {
			case u.work.failed:
			case n != nil:
				l.open[l.domainOf(n)] = true
			case d.cluster.missing[name]:
				l.vanished = append(l.vanished, name)
			}
		}
	}
	for i := range d.members {
		n := d.members[i].Node
		if d.members[i].isWorkedOn {
			l.begun[l.domainOf(n)] = true
		}
	}
	d.limits = append(d.limits, l)
}

func (l *limit) covers(n *Node) bool { return !l.controlPlane || n.controlPlane }

func (l *limit) domainOf(n *Node) string {
	if l.key == "" {
		return ""
	}
	return n.Labels[l.key]
}

// at returns the places of a domain.
func (l *limit) at(domain string) *places {
	p := l.domains[domain]
	if p == nil {
		p = &places{}
		l.domains[domain] = p
	}
	return p
}

// cost is what a unit takes in a domain.
type cost struct {
	domain string
	// size is the number of its nodes. added is the number of those that would be out in addition,
	// and counted that of those among them that count as out already. A node that is visibly out
	// adds nothing, but the unit waits while more nodes are out than the limit allows. One that is
	// only taken, which the Node does not show yet or any more, costs a place although it is
	// counted.
	size, added, counted int
}

// costs returns what a unit takes, sorted by domain. The result is valid until the next call.
func (l *limit) costs(u *Unit) []cost {
	costs := l.buffer[:0]
	for _, n := range u.Nodes {
		if !l.covers(n) {
			continue
		}
		domain := l.domainOf(n)
		i := slices.IndexFunc(costs, func(c cost) bool { return c.domain == domain })
		if i < 0 {
			i, costs = len(costs), append(costs, cost{domain: domain})
		}
		costs[i].size++
		if n.down == "" {
			costs[i].added++
			if l.cluster.takenBy(n) != "" {
				costs[i].counted++
			}
		}
	}
	slices.SortFunc(costs, func(a, b cost) int { return strings.Compare(a.domain, b.domain) })
	l.buffer = costs
	return costs
}

// excludes returns why the unit would not fit even if no other node was out; "" if it would.
func (l *limit) excludes(u *Unit) string {
	costs := l.costs(u)
	if l.maxDomains > 0 {
		if len(costs) > l.maxDomains {
			return fmt.Sprintf("it has nodes in %d domains of %s; %s allows %d", len(costs), l.key, l.name, l.maxDomains)
		}
		return ""
	}
	for _, c := range costs {
		if p := l.at(c.domain); c.size > p.allowed {
			return fmt.Sprintf("it has %s%s; %s allows %d", wording.Count(c.size, "node"), l.in(c.domain), l.name, p.allowed)
		}
	}
	return ""
}

// refuses returns in which domain the limit keeps a unit from starting, and whether it does.
func (l *limit) refuses(u *Unit) (domain string, refused bool) {
	open := len(l.open)
	for _, c := range l.costs(u) {
		if l.maxDomains > 0 {
			if !l.open[c.domain] {
				open++
			}
			continue
		}
		if p := l.at(c.domain); p.out-c.counted+c.added+l.missing+len(l.strays) > p.allowed {
			return c.domain, true
		}
	}
	if open > len(l.open) {
		open += len(l.vanished)
	}
	return "", open > l.maxDomains
}

// start counts the nodes of a unit that starts.
func (l *limit) start(u *Unit) {
	for _, n := range u.Nodes {
		if l.covers(n) && !l.cluster.isOut(n) {
			l.out = append(l.out, n)
		}
	}
	for _, c := range l.costs(u) {
		if l.maxDomains > 0 {
			l.open[c.domain] = true
		} else {
			l.at(c.domain).out += c.added - c.counted
		}
	}
}

// refusal describes for people who takes the places of a limit in a domain.
func (d *decider) refusal(l *limit, domain string) string {
	if l.maxDomains > 0 {
		in := slices.Collect(maps.Keys(l.open))
		for _, name := range l.vanished {
			in = append(in, "that of node "+name+", which does not exist, but may return")
		}
		return fmt.Sprintf("%s allows %s of %s, and units run in %s", l.name, wording.Count(l.maxDomains, "domain"), l.key, Names(in))
	}
	var takers []string
	taker := func(n *Node) { takers = append(takers, n.Name+" "+cmp.Or(n.down, d.cluster.takenBy(n))) }
	for _, n := range l.out {
		if l.domainOf(n) == domain {
			taker(n)
		}
	}
	for name := range l.strays {
		taker(d.cluster.Nodes.byName[name])
	}
	for name := range d.cluster.missing {
		takers = append(takers, name+" does not exist, but may return")
	}
	return fmt.Sprintf("%s allows %s out of service%s: %s", l.name, wording.Count(l.at(domain).allowed, "node"), l.in(domain),
		Names(takers))
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

// Names joins texts in their order, and cuts a long list. It sorts the list.
func Names(all []string) string {
	slices.Sort(all)
	return wording.FirstOf(all)
}
