// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

// Annotations of the Lease. They identify the storage of the holder, and the revision of this
// storage at the last renewal.
const (
	annotationStorageID       = maintenance.GroupName + "/storage-id"
	annotationStorageRevision = maintenance.GroupName + "/storage-revision"
	// annotationStorageMark is the revision at which the leader last marked its storage. It is not
	// set with embedded storage.
	annotationStorageMark = maintenance.GroupName + "/storage-mark"
)

const (
	// revisionTimeout limits how long a renewal waits for etcd.
	revisionTimeout = time.Second
	// restoredBy is the minimum by which `etcdutl snapshot restore --bump-revision` increases the
	// revision. The documentation recommends 1,000,000,000. Normal writes between two renewals of a
	// leader never increase the revision that much. This applies only to embedded storage: in a
	// shared etcd, the writes of other clients, such as kube-apiserver, can increase it that much
	// within a few days.
	restoredBy = 100_000_000
	// markPeriod is the interval at which the leader marks an external storage. The restore of a
	// backup that is younger than this is not recognized.
	markPeriod = time.Minute
)

// Storage describes the storage of this server.
type Storage struct {
	// ID was generated when the storage was created, and is stored in it.
	ID string
	// Revision returns the current revision of the storage.
	Revision func(context.Context) (int64, error)
	// Mark returns the revision at which the storage was last marked; 0 if never. SetMark marks the
	// storage and returns the revision of the mark. Both are nil with embedded storage.
	Mark, SetMark func(context.Context) (int64, error)
	// Embedded is set if the storage runs in this process and only this process uses it.
	Embedded bool
	// Adopt is the ID of another storage whose Lease this server may take over; empty for none.
	Adopt string
	// AcceptRestored lets the server lead with a storage that was restored from a backup.
	AcceptRestored bool
	// Forget deletes the NodeTasks. A new leader whose storage was restored, or is another one than
	// that of the last leader, does so before its controllers run: the work has ended since, and a
	// worker that finds its claim would do it again on a node in service. The server offers the
	// nodes again when they are drained. Nil deletes nothing.
	Forget func(context.Context) error

	// outdated is set if the storage was older than the Lease when this replica last tried to
	// acquire the Lease, until the NodeTasks are deleted.
	outdated atomic.Bool
	// last is the last revision that was read.
	last atomic.Int64
	// marked is the time at which this process last marked the storage.
	marked atomic.Pointer[time.Time]
}

// state distinguishes a storage from a restored backup of it.
type state struct {
	// revision is the revision of the storage; mark is the revision of its last mark, 0 if it has
	// none.
	revision, mark int64
}

// other returns the ID of the storage of the last leader, "" if it is this one.
func (s *Storage) other(lease *coordinationv1.Lease) string {
	if id := lease.Annotations[annotationStorageID]; id != s.ID {
		return id
	}
	return ""
}

// foreign reports whether a Lease belongs to another storage that this server must not take over.
func (s *Storage) foreign(lease *coordinationv1.Lease) (id string, foreign bool) {
	id = s.other(lease)
	return id, id != "" && id != s.Adopt
}

// restored returns the revision of this storage in a Lease, and whether the storage was restored
// from a backup since the Lease was last renewed. The storage was restored if its revision is lower
// than the one in the Lease, if its last mark is older than the one in the Lease or, with embedded
// storage, if normal writes cannot have reached its current revision.
func (s *Storage) restored(lease *coordinationv1.Lease, now state) (known int64, restored bool) {
	if lease.Annotations[annotationStorageID] != s.ID {
		return 0, false
	}
	known, err := strconv.ParseInt(lease.Annotations[annotationStorageRevision], 10, 64)
	if err != nil {
		return 0, false
	}
	if now.revision < known {
		return known, true
	}
	if s.Mark == nil {
		return known, now.revision-known > restoredBy
	}
	marked, err := strconv.ParseInt(lease.Annotations[annotationStorageMark], 10, 64)
	return known, err == nil && now.mark < marked
}

// sign adds the ID, the revision and the mark to a Lease before the replica acquires or renews it.
// It returns an error if this replica must not acquire the Lease. While the storage is outdated the
// Lease keeps what it has: otherwise a replica that takes over would not delete the NodeTasks.
func (s *Storage) sign(ctx context.Context, lease *coordinationv1.Lease, held bool) error {
	if held && s.outdated.Load() {
		return nil
	}
	revision, err := s.revision(ctx)
	if err != nil && held {
		revision, err = s.lastRevision(ctx, err)
	}
	if err != nil {
		return err
	}
	if id, foreign := s.foreign(lease); foreign {
		return fmt.Errorf("the lease belongs to storage %s", id)
	}
	mark, marked, err := s.signedMark(ctx, held)
	if err != nil {
		return err
	}
	if !held {
		_, restored := s.restored(lease, state{revision, mark})
		if restored && !s.AcceptRestored {
			return fmt.Errorf("storage %s was restored from a backup", s.ID)
		}
		s.outdated.Store(restored || s.other(lease) != "")
		if s.outdated.Load() {
			return nil
		}
	}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[annotationStorageID] = s.ID
	lease.Annotations[annotationStorageRevision] = strconv.FormatInt(revision, 10)
	if marked {
		lease.Annotations[annotationStorageMark] = strconv.FormatInt(mark, 10)
	}
	return nil
}

// signedMark returns the mark for a Lease, and whether it has changed. The holder marks the storage
// from time to time. A replica that is about to acquire the Lease only reads the mark, which may
// show that the storage was restored.
func (s *Storage) signedMark(ctx context.Context, held bool) (mark int64, news bool, err error) {
	if s.Mark == nil {
		return 0, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	if !held {
		s.marked.Store(nil)
		mark, err = s.Mark(ctx)
		return mark, err == nil, err
	}
	now := time.Now()
	if last := s.marked.Load(); last != nil && now.Sub(*last) < markPeriod {
		return 0, false, nil
	}
	if mark, err = s.SetMark(ctx); err != nil {
		// A leader must not lose its Lease because etcd elects a new leader.
		klog.FromContext(ctx).Info("The storage could not be marked; the lease is renewed with the last mark", "err", err)
		return 0, false, nil
	}
	s.marked.Store(&now)
	return mark, true, nil
}

// isMarked reports whether a leader has used this storage, which other servers may also use.
func (s *Storage) isMarked(ctx context.Context) (bool, error) {
	if s == nil || s.Mark == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	mark, err := s.Mark(ctx)
	return mark > 0, err
}

// state returns the current revision and the last mark.
func (s *Storage) state(ctx context.Context) (state, error) {
	revision, err := s.revision(ctx)
	if err != nil || s.Mark == nil {
		return state{revision: revision}, err
	}
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	mark, err := s.Mark(ctx)
	if err != nil {
		return state{}, fmt.Errorf("read the mark of the storage: %w", err)
	}
	return state{revision, mark}, nil
}

// revision returns the current revision.
func (s *Storage) revision(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	revision, err := s.Revision(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the revision of the storage: %w", err)
	}
	s.last.Store(revision)
	return revision, nil
}

// lastRevision returns the last known revision, or the error if there is none: a leader must not
// lose its Lease because etcd elects a new leader.
func (s *Storage) lastRevision(ctx context.Context, err error) (int64, error) {
	if last := s.last.Load(); last > 0 {
		klog.FromContext(ctx).Info("The storage did not return its revision; the lease is renewed with the last one", "revision", last, "err", err)
		return last, nil
	}
	return 0, err
}
