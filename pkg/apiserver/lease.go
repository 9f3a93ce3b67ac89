// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// lease implements the lock of the elector. Unlike client-go's lock, it uses the clock of this
// process to measure the time since the last renewal was sent.
type lease struct {
	client    coordinationclient.LeaseInterface
	name      string
	namespace string
	identity  string
	deadline  time.Duration
	// storage describes the storage of this server, for annotations of the Lease; nil if unknown.
	storage *Storage
	// retry is the pause between two attempts to release the Lease.
	retry time.Duration
	// sightings has the observations of the Lease by this replica. If the Lease was deleted, the
	// replica waits for duration before it creates a new one. The wait begins when the replica last
	// read the old Lease or, if it never did, when it began to look for the Lease.
	sightings *sightings
	duration  time.Duration

	mu sync.Mutex
	// last is the Lease that this process last read or wrote.
	last *coordinationv1.Lease
	// held is set once a write has named this replica as the holder.
	held bool
	// renewed is the time at which the last such write was sent. Other replicas notice the write
	// later, so their wait for the Lease ends later as well.
	renewed time.Time
	// uid is the UID of the Lease that the last such write stored.
	uid types.UID
	// acquired is the time of the first such write.
	acquired metav1.Time
	// expiry fires if no such write has succeeded within the renew deadline.
	expiry *time.Timer
	// lost is set when the Lease that this replica holds was deleted or got another holder. onLost
	// is then called.
	lost   bool
	onLost func()
}

func newLease(client coordinationclient.LeasesGetter, e LeaderElection, storage *Storage, seen *sightings) *lease {
	return &lease{
		client: client.Leases(e.Namespace), name: e.Name, namespace: e.Namespace, identity: e.Identity,
		deadline: e.RenewDeadline, retry: e.RetryPeriod, duration: e.LeaseDuration, storage: storage, sightings: seen,
	}
}

// Get implements resourcelock.Interface.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	got, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		l.sightings.noteAbsent()
		l.loseIf(func() bool { return true })
	}
	if err != nil {
		return nil, nil, err
	}
	l.sightings.note(got)
	l.loseIf(func() bool {
		return got.UID != l.uid || got.Spec.HolderIdentity == nil || *got.Spec.HolderIdentity != l.identity
	})
	l.mu.Lock()
	l.last = got
	l.mu.Unlock()
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&got.Spec)
	raw, err := json.Marshal(record)
	return record, raw, err
}

// Create implements resourcelock.Interface. It fails while the holder of a deleted Lease may still
// act.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	since, seen := l.sightings.sinceSeen()
	if since < l.duration && !seen {
		// A storage that no leader has used has no other replicas.
		var err error
		if seen, err = l.storage.isMarked(ctx); err != nil {
			return err
		}
	}
	if since < l.duration && seen {
		return fmt.Errorf("the Lease was deleted, and its last holder may still act for %v", l.duration-since)
	}
	return l.write(ctx, record, func(next *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		next.ObjectMeta = metav1.ObjectMeta{Namespace: l.namespace, Name: l.name, Annotations: next.Annotations}
		return l.client.Create(ctx, next, metav1.CreateOptions{})
	})
}

// Update implements resourcelock.Interface.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, func(next *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		if next.Name == "" {
			return nil, errors.New("the Lease has not been read yet")
		}
		return l.client.Update(ctx, next, metav1.UpdateOptions{})
	})
}

func (l *lease) write(ctx context.Context, record resourcelock.LeaderElectionRecord,
	send func(*coordinationv1.Lease) (*coordinationv1.Lease, error)) error {
	l.mu.Lock()
	next := &coordinationv1.Lease{}
	if l.last != nil {
		next = l.last.DeepCopy()
	}
	held, acquired := l.held, l.acquired
	l.mu.Unlock()
	if record.HolderIdentity == l.identity {
		if l.storage != nil {
			if err := l.storage.sign(ctx, next, held); err != nil {
				return err
			}
		}
		// client-go keeps the time of the previous term if the Lease still names this replica.
		record.AcquireTime = record.RenewTime
		if held {
			record.AcquireTime = acquired
		}
	}
	next.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	sent := time.Now()
	written, err := send(next)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = written
	l.sightings.note(written)
	if record.HolderIdentity != l.identity || l.lost {
		return nil
	}
	l.held, l.renewed, l.uid, l.acquired = true, sent, written.UID, record.AcquireTime
	if l.expiry != nil && l.expiry.Stop() {
		// Do not reset a timer that has fired: the controllers are already stopping.
		l.expiry.Reset(l.deadline - time.Since(sent))
	}
	return nil
}

// loseIf ends the term of this replica if it holds the Lease and the condition is true: another
// replica may act from now on. client-go itself would continue until the renew deadline.
func (l *lease) loseIf(condition func() bool) {
	l.mu.Lock()
	if !l.held || l.lost || !condition() {
		l.mu.Unlock()
		return
	}
	l.lost = true
	end := l.onLost
	l.mu.Unlock()
	if end != nil {
		end()
	}
}

// onLoss registers a function that is called once when the Lease is deleted or gets another holder.
func (l *lease) onLoss(f func()) {
	l.mu.Lock()
	lost := l.lost
	l.onLost = f
	l.mu.Unlock()
	if lost {
		f()
	}
}

// onDeadline calls f once if the Lease is not renewed within the renew deadline. The returned
// function cancels this.
func (l *lease) onDeadline(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiry = time.AfterFunc(l.deadline-time.Since(l.renewed), f)
	return l.expiry.Stop
}

// check returns an error if this replica has lost the Lease or has not renewed it within the renew
// deadline and the grace period. It reads the clock, since the timer of a process that was
// suspended fires some time after the process resumes. The monotonic clock continues while the
// process is stopped; the wall clock also continues while the machine sleeps.
func (l *lease) check(grace time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return ErrLeaseLost
	}
	now, limit := time.Now(), l.deadline+grace
	if now.Sub(l.renewed) < limit && now.Round(0).Sub(l.renewed.Round(0)) < limit {
		return nil
	}
	return errNotRenewed
}

// isHeld reports whether this replica has ever acquired the Lease.
func (l *lease) isHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// isLost reports whether the Lease was deleted or got another holder while this replica held it.
func (l *lease) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// release releases the Lease if this replica still holds it. It also releases a Lease that this
// replica acquired without getting the response.
func (l *lease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.deadline)
	defer cancel()
	logger := klog.FromContext(ctx).WithValues("lease", klog.KRef(l.namespace, l.name))
	for {
		record, _, err := l.Get(ctx)
		if err == nil && record.HolderIdentity == l.identity && !l.isLost() {
			now := metav1.Now()
			err = l.Update(ctx, resourcelock.LeaderElectionRecord{
				LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: record.LeaderTransitions,
			})
		}
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return
		case apierrors.IsConflict(err):
			select {
			case <-ctx.Done():
			case <-time.After(l.retry):
				continue
			}
		}
		logger.Error(err, "Cannot release the Lease, which will expire")
		return
	}
}

// RecordEvent implements resourcelock.Interface. It does nothing, since the log has the same
// information.
func (l *lease) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (l *lease) Identity() string { return l.identity }

// Describe implements resourcelock.Interface.
func (l *lease) Describe() string { return fmt.Sprintf("%s/%s", l.namespace, l.name) }
