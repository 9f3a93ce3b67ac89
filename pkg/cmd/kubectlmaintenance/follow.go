// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	listers "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
)

const (
	// redrawAfter is the time for which the follower collects changes before it shows them.
	redrawAfter = 200 * time.Millisecond
	// redrawAtLeast is the interval at which ages and rates are updated if no object changes.
	redrawAtLeast = time.Second
)

// noteForbidden is shown if the user may not list Evacuations.
const noteForbidden = "you may not list evacuations in all namespaces, so the names of departed and blocked pods are not shown; " +
	"to see those of one namespace: kubectl maintenance blockers --namespace=NAMESPACE"

// follower watches one maintenance or all of them.
type follower struct {
	e *environment
	c clients
	// name is the maintenance; empty for all.
	name string

	maintenances listers.NodeMaintenanceLister
	// evacuations is nil if the user may not list them.
	evacuations listers.EvacuationLister
	departures  map[types.UID]*show.Departures
	changed     chan struct{}
	// pressed tells that the user has pressed a key; nil if there is no keyboard.
	pressed chan struct{}

	mu sync.Mutex
	// reads are those of each informer.
	reads []*reads
}

// newFollower starts a follower, which runs until the context ends.
func (e *environment) newFollower(ctx context.Context, c clients, name string) (*follower, error) {
	// Informers retry forever, so check for permanent errors first.
	if name != "" {
		if _, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	} else if _, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return nil, err
	}
	f := &follower{e: e, c: c, name: name, departures: map[types.UID]*show.Departures{}, changed: make(chan struct{}, 1)}
	client := c.haulout.MaintenanceV1alpha1()
	maintenances, err := newInformer[*v1alpha1.NodeMaintenanceList](f, &v1alpha1.NodeMaintenance{}, client.NodeMaintenances(), func(o *metav1.ListOptions) {
		if name == "" {
			o.LabelSelector = e.labels
		} else {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}
	})
	if err != nil {
		return nil, err
	}
	all := []cache.SharedIndexInformer{maintenances}
	f.maintenances = listers.NewNodeMaintenanceLister(maintenances.GetIndexer())
	_, err = client.Evacuations(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case err == nil:
		evacuations, err := newInformer[*v1alpha1.EvacuationList](f, &v1alpha1.Evacuation{}, client.Evacuations(metav1.NamespaceAll), func(*metav1.ListOptions) {})
		if err != nil {
			return nil, err
		}
		all = append(all, evacuations)
		f.evacuations = listers.NewEvacuationLister(evacuations.GetIndexer())
	case !apierrors.IsForbidden(err):
		return nil, err
	}
	for _, informer := range all {
		go informer.RunWithContext(ctx)
	}
	for _, informer := range all {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil, ctx.Err()
		}
	}
	return f, nil
}

// listWatcher is the client of one kind of object.
type listWatcher[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// newInformer returns an informer that tells a follower about changes. The follower records the
// requests itself: client-go passes no error to a handler while an address refuses connections, and
// the objects are out of date also while it waits for its next attempt, up to a minute.
func newInformer[L runtime.Object](f *follower, object runtime.Object, c listWatcher[L], only func(*metav1.ListOptions)) (cache.SharedIndexInformer, error) {
	r := &reads{}
	f.reads = append(f.reads, r)
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			only(&options)
			f.begin(r)
			list, err := c.List(ctx, options)
			f.end(ctx, r, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			only(&options)
			f.begin(r)
			w, err := c.Watch(ctx, options)
			// client-go returns an empty watch if the server has not answered in time.
			if err != nil || reflect.TypeOf(w) != reflect.TypeOf(watch.NewEmptyWatch()) {
				f.end(ctx, r, err)
			}
			return w, err
		},
	}, f.c.haulout), object, 0, cache.Indexers{})
	if err := informer.SetTransform(withoutManagedFields); err != nil {
		return nil, err
	}
	// The default one logs the errors.
	if err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		return nil, err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f.signal() },
		UpdateFunc: func(any, any) { f.signal() },
		DeleteFunc: func(any) { f.signal() },
	})
	return informer, err
}

func withoutManagedFields(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// begin records that an informer sends a request.
func (f *follower) begin(r *reads) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.begin(f.e.now())
}

// end records the answer to a request of an informer, unless the command ends.
func (f *follower) end(ctx context.Context, r *reads, err error) {
	if ctx.Err() != nil {
		return
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = nil // the informer begins an expired watch again
	}
	f.mu.Lock()
	r.end(err)
	f.mu.Unlock()
	f.signal()
}

// signal makes each show the facts again.
func (f *follower) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// note returns the note that the facts may be out of date; "" while the server answers.
func (f *follower) note() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.e.now()
	for _, r := range f.reads {
		if note := r.note(now); note != "" {
			return note
		}
	}
	return ""
}

// report shows lines or, without a terminal, their summary, with the note that they may be out of
// date.
func (f *follower) report(r *reporter, o show.Options, lines func(show.Options) []screen.Line, summary string, final bool) {
	note := f.note()
	if note != "" {
		summary += "; " + note
	}
	r.report(func(int) []screen.Line {
		noted := o.Note(note)
		if o.Rows > 0 {
			o.Rows = max(o.Rows-len(noted), 1)
		}
		return append(noted, lines(o)...)
	}, summary, final)
}

// facts returns the facts about each maintenance, sorted by name. It is empty if none exists.
func (f *follower) facts() ([]show.Facts, error) {
	found, err := f.maintenances.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b *v1alpha1.NodeMaintenance) int { return strings.Compare(a.Name, b.Name) })
	var evacuations []v1alpha1.Evacuation
	if f.evacuations != nil {
		known, err := f.evacuations.List(labels.Everything())
		if err != nil {
			return nil, err
		}
		for _, one := range known {
			evacuations = append(evacuations, *one)
		}
	}
	var notes []string
	if f.evacuations == nil {
		notes = append(notes, noteForbidden)
	}
	var out []show.Facts
	for _, nm := range found {
		if f.name != "" && nm.Name != f.name {
			continue
		}
		if f.evacuations != nil {
			if f.departures[nm.UID] == nil {
				f.departures[nm.UID] = &show.Departures{}
			}
			f.departures[nm.UID].See(nm, evacuations)
		}
		out = append(out, show.Facts{
			Maintenance: nm, Evacuations: evacuations, Departures: f.departures[nm.UID], Notes: notes, Now: f.e.now(),
		})
	}
	return out, nil
}

// each calls look with the facts after every change, after every key, and at least once a second,
// until look returns done.
func (f *follower) each(ctx context.Context, look func([]show.Facts) (done bool, err error)) error {
	ticker := time.NewTicker(redrawAtLeast)
	defer ticker.Stop()
	for {
		facts, err := f.facts()
		if err != nil {
			return err
		}
		if done, err := look(facts); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errTimeout) {
				return errTimeout
			}
			return ctx.Err()
		case <-ticker.C:
		case <-f.pressed:
		case <-f.changed:
			// Show all changes within a short time together.
			select {
			case <-ctx.Done():
			case <-time.After(redrawAfter):
			}
		}
	}
}

// snapshot reads a maintenance and the Evacuations once, or all maintenances if the name is empty.
func (e *environment) snapshot(ctx context.Context, c clients, name string) ([]show.Facts, error) {
	var found []v1alpha1.NodeMaintenance
	maintenances := c.haulout.MaintenanceV1alpha1().NodeMaintenances()
	if name != "" {
		nm, err := maintenances.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		found = append(found, *nm)
	} else {
		all, err := maintenances.List(ctx, metav1.ListOptions{LabelSelector: e.labels})
		if err != nil {
			return nil, err
		}
		found = all.Items
	}
	var notes []string
	evacuations, err := c.haulout.MaintenanceV1alpha1().Evacuations(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		evacuations, notes = &v1alpha1.EvacuationList{}, []string{noteForbidden}
	case err != nil:
		return nil, err
	}
	out := make([]show.Facts, 0, len(found))
	for i := range found {
		var departures *show.Departures
		if len(notes) == 0 {
			departures = &show.Departures{}
			departures.See(&found[i], evacuations.Items)
		}
		out = append(out, show.Facts{
			Maintenance: &found[i], Evacuations: evacuations.Items, Departures: departures, Notes: notes, Now: e.now(),
		})
	}
	return out, nil
}

// errTimeout is the cause of a context whose --timeout has passed.
var errTimeout = errors.New("the timeout has passed")
