// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

const (
	// volumePart is the divisor for the part of a volume that the database may use. The volume also
	// stores the log (up to five files of 64 MiB or more), a snapshot and, during a
	// defragmentation, a copy of the database.
	volumePart = 4
	// disarmBelow is the percentage of the quota below which a full database accepts writes again.
	disarmBelow = 80
	// defragmentAbove is the database size, in bytes, below which a defragmentation frees too
	// little space.
	defragmentAbove = 8 << 20

	// lowFreeBytes is the free space below which the next log file may not fit.
	lowFreeBytes = 128 << 20

	measurePeriod = 30 * time.Second
	shrinkTimeout = 90 * time.Second
)

var (
	databaseBytes = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "embedded_etcd", Name: "database_bytes",
		Help:           "Size of the database of the embedded etcd, in bytes.",
		StabilityLevel: metrics.ALPHA,
	})

	quotaBytes = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "embedded_etcd", Name: "quota_bytes",
		Help:           "Size of the database at which the embedded etcd stops accepting writes, in bytes.",
		StabilityLevel: metrics.ALPHA,
	})

	diskFreeBytes = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "embedded_etcd", Name: "disk_free_bytes",
		Help:           "Free space on the volume of the embedded etcd, in bytes.",
		StabilityLevel: metrics.ALPHA,
	})

	registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(databaseBytes, quotaBytes, diskFreeBytes) })
)

// volume returns the size of a directory's volume, and its free space for this user.
func volume(dir string) (size, free int64, err error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0, 0, fmt.Errorf("read the size of the volume of %s: %w", dir, err)
	}
	block := stat.Bsize
	return int64(stat.Blocks) * block, int64(stat.Bavail) * block, nil
}

// quotaOn returns the quota for a database in a directory.
func quotaOn(ctx context.Context, dir string, asked int64) (int64, error) {
	size, free, err := volume(dir)
	if err != nil {
		return 0, err
	}
	quota := limitQuota(asked, size)
	logger := klog.FromContext(ctx).WithValues("quotaBytes", quota, "volumeBytes", size, "freeBytes", free)
	if quota < asked {
		logger.Info("Quota of the embedded etcd is limited to a quarter of its volume", "askedBytes", asked)
	} else {
		logger.Info("Quota of the embedded etcd is set")
	}
	if free < lowFreeBytes {
		logger.Info("Volume of the embedded etcd is nearly full: the server ends when etcd cannot write", "dataDir", dir, "wantFreeBytes", lowFreeBytes)
	}
	return quota, nil
}

// limitQuota returns the configured quota, limited to a part of a volume of the given size. A size
// of 0 means that the size is unknown.
func limitQuota(asked, size int64) int64 {
	if size <= 0 {
		return asked
	}
	return min(asked, max(size/volumePart, MinQuotaBytes))
}

// shrink removes old versions from the database and returns their space to the volume. If a full
// database has room again, shrink disarms the alarm: administrators cannot do this, since only this
// container has the socket of etcd.
func (s *Server) shrink(ctx context.Context, quota int64) error {
	ctx, cancel := context.WithTimeout(ctx, shrinkTimeout)
	defer cancel()
	client, err := s.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	status, err := client.Status(ctx, s.endpoint)
	if err != nil {
		return err
	}
	before := status.DbSize
	if err := compact(ctx, client, status.Header.Revision); err != nil {
		return err
	}
	full, err := spaceAlarms(ctx, client)
	if err != nil {
		return err
	}
	if len(full) == 0 {
		err := seal(ctx, client)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			full, err = spaceAlarms(ctx, client) // including an alarm that this write has raised
		}
		if err != nil {
			return err
		}
	}
	if status, err = client.Status(ctx, s.endpoint); err != nil {
		return err
	}
	// Always defragment a full database: etcd counts the space that a compaction has freed as used
	// until the next write, which a full database does not accept. Otherwise defragment only if
	// this frees at least a third of the size.
	if status.DbSize > defragmentAbove && (len(full) > 0 || status.DbSizeInUse < status.DbSize*2/3) {
		if _, err := client.Defragment(ctx, s.endpoint); err != nil {
			return fmt.Errorf("defragment the database: %w", err)
		}
		if status, err = client.Status(ctx, s.endpoint); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Database was shrunk", "beforeBytes", before, "afterBytes", status.DbSize)
	}
	if len(full) == 0 {
		return nil
	}
	if err := disarm(ctx, client, full, status.DbSize, quota); err != nil {
		return err
	}
	return seal(ctx, client)
}

// sealKey is written and deleted at each start. It does not have the prefix of the objects.
const sealKey = "haulout.dev/sealed"

// seal compacts once more, at a revision at which no object was written. etcd accepts a watch that
// begins at the revision of its last compaction, but no longer has the previous value of an object
// that was written at this revision. A client whose watch begins there would get only errors. After
// seal, such a client gets the error that makes it list again.
func seal(ctx context.Context, client *clientv3.Client) error {
	sealed, err := client.Put(ctx, sealKey, "")
	if err != nil {
		return fmt.Errorf("write the key for the last compaction: %w", err)
	}
	if _, err := client.Delete(ctx, sealKey); err != nil {
		return fmt.Errorf("delete the key for the last compaction: %w", err)
	}
	return compact(ctx, client, sealed.Header.Revision)
}

// compact removes all versions before a revision from the database.
func compact(ctx context.Context, client *clientv3.Client, revision int64) error {
	if revision <= 1 {
		return nil
	}
	if _, err := client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact the database: %w", err)
	}
	return nil
}

// spaceAlarms returns the alarms for a full database, in which etcd accepts no writes.
func spaceAlarms(ctx context.Context, client *clientv3.Client) ([]*clientv3.AlarmMember, error) {
	alarms, err := client.AlarmList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the alarms of etcd: %w", err)
	}
	var found []*clientv3.AlarmMember
	for _, alarm := range alarms.Alarms {
		if alarm.Alarm == etcdserverpb.AlarmType_NOSPACE {
			found = append(found, (*clientv3.AlarmMember)(alarm))
		}
	}
	return found, nil
}

// disarm disarms the alarms if the database has room again.
func disarm(ctx context.Context, client *clientv3.Client, alarms []*clientv3.AlarmMember, size, quota int64) error {
	if size*100 >= quota*disarmBelow {
		return fmt.Errorf("the database has %d bytes of a quota of %d and accepts no writes: delete unneeded objects and restart, "+
			"or raise --embedded-etcd-quota-bytes on a larger volume", size, quota)
	}
	for _, alarm := range alarms {
		if _, err := client.AlarmDisarm(ctx, alarm); err != nil {
			return fmt.Errorf("disarm the alarm of etcd: %w", err)
		}
		klog.FromContext(ctx).Info("Database was full and accepts writes again", "databaseBytes", size, "quotaBytes", quota)
	}
	return nil
}

// measure updates the metrics about sizes until the server stops.
func (s *Server) measure(ctx context.Context, dir string, quota int64) {
	registerMetrics()
	quotaBytes.Set(float64(quota))
	ctx, s.endMetrics = context.WithCancel(context.WithoutCancel(ctx))
	backend := s.etcd.Server.Backend()
	update := func(ctx context.Context) {
		databaseBytes.Set(float64(backend.Size()))
		_, free, err := volume(dir)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot determine the free space")
			return
		}
		diskFreeBytes.Set(float64(free))
	}
	update(ctx)
	go wait.UntilWithContext(ctx, update, measurePeriod)
}
