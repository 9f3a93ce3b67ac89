// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
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
	// trouble is the last error of a watch, and troubleAt its time.
	trouble   error
	troubleAt time.Time
}

// troubleFor is the time for which an error is shown. An error that persists occurs again and is
// shown again.
const troubleFor = 15 * time.Second

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
	factory := informers.NewSharedInformerFactory(c.haulout, 0)
	named := informers.NewSharedInformerFactoryWithOptions(c.haulout, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		if name == "" {
			o.LabelSelector = e.labels
		} else {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}
	}))
	all := []cache.SharedIndexInformer{named.Maintenance().V1alpha1().NodeMaintenances().Informer()}
	f.maintenances = named.Maintenance().V1alpha1().NodeMaintenances().Lister()
	_, err := c.haulout.MaintenanceV1alpha1().Evacuations(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case err == nil:
		all = append(all, factory.Maintenance().V1alpha1().Evacuations().Informer())
		f.evacuations = factory.Maintenance().V1alpha1().Evacuations().Lister()
	case !apierrors.IsForbidden(err):
		return nil, err
	}
	for _, informer := range all {
		if err := f.watch(informer); err != nil {
			return nil, err
		}
	}
	named.StartWithContext(ctx)
	factory.StartWithContext(ctx)
	for _, informer := range all {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil, ctx.Err()
		}
	}
	return f, nil
}

// watch adds handlers for changes and errors to an informer.
func (f *follower) watch(informer cache.SharedIndexInformer) error {
	if err := informer.SetTransform(withoutManagedFields); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		// This is not an error: the informer restarts an expired watch.
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			f.setTrouble(err)
		}
	}); err != nil {
		return err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f.setTrouble(nil) },
		UpdateFunc: func(any, any) { f.setTrouble(nil) },
		DeleteFunc: func(any) { f.setTrouble(nil) },
	})
	return err
}

func withoutManagedFields(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

func (f *follower) setTrouble(err error) {
	f.mu.Lock()
	f.trouble, f.troubleAt = err, f.e.now()
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
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
			Maintenance: nm, Evacuations: evacuations, Departures: f.departures[nm.UID], Notes: f.notes(), Now: f.e.now(),
		})
	}
	return out, nil
}

func (f *follower) notes() []string {
	var notes []string
	if f.evacuations == nil {
		notes = append(notes, noteForbidden)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.trouble != nil && f.e.now().Sub(f.troubleAt) < troubleFor {
		notes = append(notes, outOfDate(f.trouble))
	}
	return notes
}

// outOfDate is the note that is shown while reads fail.
func outOfDate(trouble error) string {
	return fmt.Sprintf("this may be out of date: the server does not answer; retrying (%v)", trouble)
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
