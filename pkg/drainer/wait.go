// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package drainer

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Follow calls look with a maintenance as it is and then after each change, until look returns true
// or an error, which Follow returns. It calls look with nil if the maintenance does not exist any
// more, or if another one was created under its name.
type Follow func(ctx context.Context, nm *v1alpha1.NodeMaintenance, look func(*v1alpha1.NodeMaintenance) (done bool, err error)) error

// LastRead is the maximum duration of the read with which Wait ends after the deadline of its
// context.
const LastRead = 5 * time.Second

// Wait waits until a maintenance has reached a state, and returns it as it is then. The maintenance
// is one that Cordon, Drain or the API has returned.
//
// Without a deadline of the context, Wait also waits for a maintenance that is blocked or paused,
// which goes on when a user has acted. After the deadline it returns a WaitError with ErrTimeout,
// ErrBlocked or ErrPaused, and the error of the context if that was cancelled. See Reached for the
// other errors. The maintenance goes on in all cases.
func (d *Drainer) Wait(ctx context.Context, nm *v1alpha1.NodeMaintenance, state State) (*v1alpha1.NodeMaintenance, error) {
	if err := isStored(nm); err != nil {
		return nil, err
	}
	follow := d.Follow
	if follow == nil {
		follow = d.watch
	}
	last := nm
	err := follow(ctx, nm, func(now *v1alpha1.NodeMaintenance) (bool, error) {
		if now == nil {
			last = nil
			return gone(nm.Name, state)
		}
		last = now
		if d.Progress != nil {
			d.Progress(now)
		}
		return Reached(now, state)
	})
	var known *WaitError
	switch {
	case err == nil || errors.As(err, &known):
		return last, err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return d.unfinished(ctx, last, state)
	case ctx.Err() != nil:
		return last, ctx.Err()
	}
	return last, err
}

// unfinished returns the maintenance, and the error if it has not reached a state when the time is
// over. It reads the maintenance once more, since the watch may be behind.
func (d *Drainer) unfinished(ctx context.Context, nm *v1alpha1.NodeMaintenance, state State) (*v1alpha1.NodeMaintenance, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LastRead)
	defer cancel()
	now, err := d.Client.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, nm.Name, metav1.GetOptions{})
	if answer.ObjectGone(err) || err == nil && now.UID != nm.UID {
		_, err = gone(nm.Name, state)
		return nil, err
	}
	if err != nil && !answer.IsTemporary(err) {
		return nm, err
	}
	if err == nil {
		if done, err := Reached(now, state); done {
			return now, err
		}
		nm = now
	}
	e := &WaitError{Err: ErrTimeout, Name: nm.Name, State: state, Maintenance: nm}
	if v1alpha1.IsPaused(nm) {
		e.Err = ErrPaused
	} else if c := Stuck(nm); c != nil {
		e.Err, e.Condition = ErrBlocked, c
	}
	return nm, e
}

// watch is the Follow of a Drainer without one. Errors that a first read returns are permanent;
// later ones are not, since the informer tries again.
func (d *Drainer) watch(ctx context.Context, nm *v1alpha1.NodeMaintenance, look func(*v1alpha1.NodeMaintenance) (bool, error)) error {
	client := d.Client.MaintenanceV1alpha1().NodeMaintenances()
	if _, err := client.Get(ctx, nm.Name, metav1.GetOptions{}); err != nil && !answer.ObjectGone(err) {
		return err
	}
	only := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, nm.Name).String()
	}
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			only(&options)
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			only(&options)
			return client.Watch(ctx, options)
		},
	}, d.Client)
	// The maintenance may be gone before the watch begins, and a watch has no event for that.
	exists := func(store cache.Store) (bool, error) {
		if _, found, err := store.GetByKey(nm.Name); found || err != nil {
			return false, err
		}
		return look(nil)
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &v1alpha1.NodeMaintenance{}, exists, func(event watch.Event) (bool, error) {
		now, ok := event.Object.(*v1alpha1.NodeMaintenance)
		switch {
		case !ok || now.Name != nm.Name:
			return false, nil
		case event.Type == watch.Deleted || now.UID != nm.UID:
			return look(nil)
		}
		return look(now)
	})
	return err
}
