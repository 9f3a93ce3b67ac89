// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package oracle checks whether drains, Evacuations and preemption kept their promises. It uses
// only what the API shows about them, and shares no code with the server that it judges.
//
// A Recorder keeps one Log: the events of pods, nodes, budgets, Deployments, NodeMaintenances,
// Evacuations and Events that its watches showed, and the calls of kube-apiserver's audit log. The
// rules are pure functions of a Log. They return a sentence for each violation.
//
// The Log puts the events of two servers, each with its own versions, into one order. The place of
// an event of the host cluster is its resource version, which counts the writes to etcd and is
// exact. The place of an event of Haulout's server is a version of the host cluster that the
// Recorder read after it received the event. This place is too late by the time of the delivery and
// of the read. If a pod ends within that time, the rules count this in favour of the server. They
// do not do so for a pod that is created within that time: a test that creates a pod after a state
// of a maintenance must first wait until the Recorder has seen that state.
package oracle

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Log has everything that a Recorder has recorded.
type Log struct {
	// Observations has the observed events in the order in which the Recorder received them.
	Observations []Observation
	// Calls has the requests to evict or delete pods.
	Calls []Call
	// Gaps has the times in which the Recorder may have missed events of Haulout's server.
	Gaps []Gap
}

// Observation is an event that a watch showed.
type Observation struct {
	watch.Event

	// Seen is the time at which the Recorder received the event.
	Seen time.Time
	// Initial is set if the object existed before the recording began.
	Initial bool

	// at is the place of the event in the history of the host cluster.
	at moment
	// version is the object's version in Haulout's server; 0 for objects of the host cluster.
	version moment
	// relisted is set if the Recorder may have missed earlier events of the object.
	relisted bool
}

// Gap is a time in which events may have been missed.
type Gap struct{ From, To time.Time }

// isInGap reports whether the Recorder may have missed events of Haulout's server at a time.
func (l *Log) isInGap(at time.Time) bool {
	return slices.ContainsFunc(l.Gaps, func(g Gap) bool { return !at.Before(g.From) && !at.After(g.To) })
}

// moment is a place in the history of a server: a resource version.
type moment uint64

// never is later than everything that was recorded.
const never = ^moment(0)

// stamp is a place in the history of the host cluster, with the time of its observation. The stamp
// of an object of Haulout's server also has the version of that server.
type stamp struct {
	at      moment
	seen    time.Time
	version moment
}

// before compares the versions of Haulout's server if both stamps have one: many of its events may
// have the same place.
func (s stamp) before(other stamp) bool {
	if s.version > 0 && other.version > 0 {
		return s.version < other.version
	}
	return s.at < other.at
}

func (o *Observation) stamp() stamp {
	if o.Initial {
		return stamp{}
	}
	return stamp{o.at, o.Seen, o.version}
}

// addHost adds an event of the host cluster. The events of each kind must be added in the order in
// which they happened.
func (l *Log) addHost(event watch.Event, seen time.Time) error {
	at, err := versionOf(event.Object)
	l.Observations = append(l.Observations, Observation{Event: event, Seen: seen, at: at})
	return err
}

// addHaulout adds an event of Haulout's server. now is a version of the host cluster that was read
// after the event had come.
func (l *Log) addHaulout(event watch.Event, seen time.Time, relisted bool, now moment) error {
	version, err := versionOf(event.Object)
	l.Observations = append(l.Observations, Observation{
		Event: event, Seen: seen, at: now, version: version, relisted: relisted,
	})
	return err
}

// begin marks all observations so far as Initial.
func (l *Log) begin() {
	for i := range l.Observations {
		l.Observations[i].Initial = true
	}
}

// Each returns the observations of the objects of a type.
func Each[T runtime.Object](log Log) iter.Seq2[*Observation, T] {
	return func(yield func(*Observation, T) bool) {
		for i := range log.Observations {
			o := &log.Observations[i]
			if object, ok := o.Object.(T); ok && !yield(o, object) {
				return
			}
		}
	}
}

// String shows what happened to pods and Deployments.
func (l Log) String() string {
	var text strings.Builder
	for i := range l.Observations {
		o := &l.Observations[i]
		seen := clock(o.Seen)
		switch object := o.Object.(type) {
		case *corev1.Pod:
			fmt.Fprintf(&text, "%s pod %s on %q: %s, %s, available %t, leaving %t, %v\n", seen, object.Name,
				object.Spec.NodeName, o.Type, object.ResourceVersion, isHealthy(o, object),
				object.DeletionTimestamp != nil, object.Annotations)
		case *appsv1.Deployment:
			fmt.Fprintf(&text, "%s deployment %s: %s, %s, replicas %d, available %d, %v\n", seen, object.Name, o.Type,
				object.ResourceVersion, *object.Spec.Replicas, object.Status.AvailableReplicas, object.Annotations)
		}
	}
	return text.String()
}

func clock(at time.Time) string { return at.Format("15:04:05.000") }

func versionOf(object runtime.Object) (moment, error) {
	accessor, ok := object.(metav1.Object)
	if !ok {
		return 0, fmt.Errorf("%T has no version", object)
	}
	version, err := parseMoment(accessor.GetResourceVersion())
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w", accessor.GetNamespace(), accessor.GetName(), err)
	}
	return version, nil
}

// parseMoment reads a resource version as a place in a history.
func parseMoment(version string) (moment, error) {
	at, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resource version %q: %w", version, err)
	}
	return moment(at), nil
}
