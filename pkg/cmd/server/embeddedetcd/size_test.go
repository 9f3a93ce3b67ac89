// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestQuotaLeavesRoomOnTheVolume(t *testing.T) {
	const gib = 1 << 30
	for name, tc := range map[string]struct{ asked, volume, want int64 }{
		"a large volume":           {2 * gib, 100 * gib, 2 * gib},
		"the volume of the claim":  {2 * gib, 8 * gib, 2 * gib},
		"a small volume":           {2 * gib, 4 * gib, gib},
		"a volume that is tiny":    {2 * gib, 16 << 20, MinQuotaBytes},
		"less than a quarter":      {gib / 2, 8 * gib, gib / 2},
		"a volume without a size":  {2 * gib, 0, 2 * gib},
		"more than the volume has": {9 * gib, 8 * gib, 2 * gib},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, limitQuota(tc.asked, tc.volume), tc.want)
		})
	}
}

// TestFullDatabaseComesBack fills the database with versions of one object until etcd accepts no
// more writes, and restarts it.
func TestFullDatabaseComesBack(t *testing.T) {
	dir := t.TempDir()
	options := Options{DataDir: dir, QuotaBytes: MinQuotaBytes}
	s := must.Get(Start(t.Context(), options))(t)
	full := fill(t, connect(t, s), 1<<20, func(int) string { return "one" })
	s.Stop()
	must.True(t, full, "the database did not fill up")

	s = must.Get(Start(t.Context(), options))(t)
	defer s.Stop()
	client := connect(t, s)
	if _, err := client.Put(t.Context(), "two", "x"); err != nil {
		t.Errorf("after a start with little in use: %v", err)
	}
	if got := value(t, databaseBytes); got <= 0 || got > MinQuotaBytes/2 {
		t.Errorf("the database has %v bytes, want less than half of the quota", got)
	}
	if got := value(t, quotaBytes); got != MinQuotaBytes {
		t.Errorf("the metric for the quota is %v", got)
	}
	if got := value(t, diskFreeBytes); got <= 0 {
		t.Errorf("%v bytes are free", got)
	}
}

// TestQuotaThatWasLowered restarts the server with a quota that the database already exceeds.
func TestQuotaThatWasLowered(t *testing.T) {
	options := Options{DataDir: t.TempDir(), QuotaBytes: 4 * MinQuotaBytes}
	s := must.Get(Start(t.Context(), options))(t)
	client := connect(t, s)
	for range 2 * MinQuotaBytes >> 20 {
		must.Get(client.Put(t.Context(), "one", strings.Repeat("x", 1<<20)))(t)
	}
	s.Stop()

	options.QuotaBytes = MinQuotaBytes
	s = must.Get(Start(t.Context(), options))(t)
	defer s.Stop()
	if _, err := connect(t, s).Put(t.Context(), "two", "x"); err != nil {
		t.Errorf("after a start with little in use: %v", err)
	}
}

// TestDatabaseThatIsReallyFullStaysSo fills the database with objects that have no old versions.
func TestDatabaseThatIsReallyFullStaysSo(t *testing.T) {
	options := Options{DataDir: t.TempDir(), QuotaBytes: MinQuotaBytes}
	s, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	// Use small objects: large objects leave gaps in the file, which the server would remove.
	full := fill(t, connect(t, s), 1<<16, func(i int) string { return fmt.Sprint(i) })
	s.Stop()
	if s, err = Start(t.Context(), options); err != nil {
		t.Fatalf("the stored objects cannot be read: %v", err)
	}
	defer s.Stop()
	client := connect(t, s)
	if _, err := client.Put(t.Context(), "more", "x"); !full || !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("filled: %v, a write is answered with %v", full, err)
	}
	if _, err := client.Delete(t.Context(), "0"); err != nil {
		t.Errorf("nothing can be deleted: %v", err)
	}
}

// fill writes values of the given size until etcd returns that there is no space left.
func fill(t *testing.T, client *clientv3.Client, size int, key func(int) string) (full bool) {
	t.Helper()
	value := strings.Repeat("x", size)
	for i := range 3 * MinQuotaBytes / size {
		_, err := client.Put(t.Context(), key(i), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return true
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return false
}

func value(t *testing.T, gauge *metrics.Gauge) float64 {
	t.Helper()
	return must.Get(testutil.GetGaugeMetricValue(gauge))(t)
}
