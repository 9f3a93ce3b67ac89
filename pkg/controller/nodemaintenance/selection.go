/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// selection keeps which maintenance selects which nodes, so that an event of a node or pod finds its maintenances without matching every
// selector again.
type selection struct {
	mu           sync.Mutex
	nodes        map[string]*corev1.Node
	maintenances map[string]*selected
	byNode       map[string]sets.Set[string]
}

type selected struct {
	uid        types.UID
	generation int64
	selector   *nodeaffinity.NodeSelector
	nodes      sets.Set[string]
	// sorted are the names of nodes in order; nil when they have to be sorted again.
	sorted []string
}

func newSelection() *selection {
	return &selection{nodes: map[string]*corev1.Node{}, maintenances: map[string]*selected{}, byNode: map[string]sets.Set[string]{}}
}

// setMaintenance takes in what a maintenance selects. An object that is older than the known one changes nothing.
func (s *selection) setMaintenance(nm *maintenancev1alpha1.NodeMaintenance) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.maintenances[nm.Name]; old != nil && old.uid == nm.UID && old.generation >= nm.Generation {
		return nil
	}
	var selector *nodeaffinity.NodeSelector
	if nm.Spec.NodeSelector != nil {
		var err error
		if selector, err = nodeaffinity.NewNodeSelector(nm.Spec.NodeSelector); err != nil {
			return fmt.Errorf("node selector: %w", err)
		}
	}
	s.remove(nm.Name)
	entry := &selected{uid: nm.UID, generation: nm.Generation, selector: selector, nodes: sets.New[string]()}
	s.maintenances[nm.Name] = entry
	for _, node := range s.nodes {
		s.match(nm.Name, entry, node)
	}
	return nil
}

func (s *selection) removeMaintenance(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(name)
}

func (s *selection) remove(name string) {
	entry := s.maintenances[name]
	if entry == nil {
		return
	}
	for node := range entry.nodes {
		s.byNode[node].Delete(name)
	}
	delete(s.maintenances, name)
}

// setNode takes in a node and returns the maintenances that selected it before or select it now.
func (s *selection) setNode(node *corev1.Node) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	touched := s.byNode[node.Name].Clone()
	s.nodes[node.Name] = node
	for name, entry := range s.maintenances {
		s.match(name, entry, node)
	}
	return sets.List(touched.Union(s.byNode[node.Name]))
}

// refreshNode takes in a newer state of a node in which nothing has changed that decides who selects it.
func (s *selection) refreshNode(node *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[node.Name] != nil {
		s.nodes[node.Name] = node
	}
}

// removeNode forgets a node and returns the maintenances that selected it.
func (s *selection) removeNode(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	touched := s.byNode[name]
	for maintenance := range touched {
		entry := s.maintenances[maintenance]
		entry.nodes.Delete(name)
		entry.sorted = nil
	}
	delete(s.byNode, name)
	delete(s.nodes, name)
	return sets.List(touched)
}

func (s *selection) match(name string, entry *selected, node *corev1.Node) {
	matches := entry.selector != nil && entry.selector.Match(node)
	if matches == entry.nodes.Has(node.Name) {
		return
	}
	entry.sorted = nil
	if !matches {
		entry.nodes.Delete(node.Name)
		s.byNode[node.Name].Delete(name)
		return
	}
	entry.nodes.Insert(node.Name)
	if s.byNode[node.Name] == nil {
		s.byNode[node.Name] = sets.New[string]()
	}
	s.byNode[node.Name].Insert(name)
}

// nodesOf returns the nodes that a maintenance selects, sorted by name.
func (s *selection) nodesOf(name string) []*corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := s.maintenances[name]
	if entry == nil {
		return nil
	}
	if entry.sorted == nil {
		entry.sorted = sets.List(entry.nodes)
	}
	nodes := make([]*corev1.Node, len(entry.sorted))
	for i, node := range entry.sorted {
		nodes[i] = s.nodes[node]
	}
	return nodes
}

// neighbours returns the names of the maintenances that select one of the nodes, sorted.
func (s *selection) neighbours(nodes []*corev1.Node) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := sets.New[string]()
	for _, node := range nodes {
		for name := range s.byNode[node.Name] {
			names.Insert(name)
		}
	}
	return sets.List(names)
}

// maintenancesOn returns the names of the maintenances that select a node, sorted.
func (s *selection) maintenancesOn(node string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sets.List(s.byNode[node])
}
