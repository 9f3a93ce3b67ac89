// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package oracle tells whether drains, Evacuations and preemption kept their promises, from nothing
// but what the API shows of them. It shares no code with the server that it judges.
//
// A Recorder keeps one Log: the events of pods, nodes, budgets, Deployments, NodeMaintenances,
// Evacuations and Events that its watches showed, and the calls of kube-apiserver's audit log. The
// rules are pure functions of a Log. They return a sentence for each violation.
//
// Two servers with histories of their own have to be put into one order. Events of the host cluster
// are placed by their resource versions, which count the writes to its etcd: that is exact. An
// event of Haulout's server is placed by a version of the host cluster that was read after the
// event had come. So it is placed too late by the time of its delivery and of that read. A pod that
// ends in that time is counted in favour of the server; the deletions of the pods that were asked
// to leave, which follow, are placed exactly. A pod that is created in that time is not: a test
// that creates late pods has to wait until the Recorder has seen what they are too late for.
package oracle

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Log is all that a Recorder saw.
type Log struct {
	// Observations are in the order in which they came.
	Observations []Observation
	// Calls are the requests to make pods leave.
	Calls []Call
	// Gaps are the times in which events of Haulout's server may have been missed.
	Gaps []Gap
}

// Observation is an event that a watch showed.
type Observation struct {
	watch.Event

	// Seen is when it came.
	Seen time.Time
	// Initial means that it belongs to the state before the recording began.
	Initial bool

	// at is its place in the history of the host cluster.
	at moment
	// version is its version in Haulout's server; 0 for objects of the host cluster.
	version moment
	// relisted means that other events of the object may have been missed before it.
	relisted bool
}

// Gap is a time in which events may have been missed.
type Gap struct{ From, To time.Time }

func (g Gap) has(t time.Time) bool { return !t.Before(g.From) && !t.After(g.To) }

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

// addHost adds an event of the host cluster. Those of a kind have to come in the order in which
// they happened.
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

// begin takes all observations so far for the state before the recording.
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
		clock := o.Seen.Format("15:04:05.000")
		switch object := o.Object.(type) {
		case *corev1.Pod:
			fmt.Fprintf(&text, "%s pod %s on %q: %s, %s, available %t, leaving %t, %v\n", clock, object.Name,
				object.Spec.NodeName, o.Type, object.ResourceVersion, isHealthy(o, object),
				object.DeletionTimestamp != nil, object.Annotations)
		case *appsv1.Deployment:
			fmt.Fprintf(&text, "%s deployment %s: %s, %s, replicas %d, available %d, %v\n", clock, object.Name, o.Type,
				object.ResourceVersion, *object.Spec.Replicas, object.Status.AvailableReplicas, object.Annotations)
		}
	}
	return text.String()
}

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
