// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/cmd/server/embeddedetcd"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestStorageHasAnIdentity(t *testing.T) {
	dir := t.TempDir()
	open := func(dir, prefix string) (id string, revision int64) {
		t.Helper()
		etcd := must.Get(embeddedetcd.Start(t.Context(),
			embeddedetcd.Options{DataDir: dir, QuotaBytes: embeddedetcd.DefaultQuotaBytes}))(t)
		defer etcd.Stop()
		client := must.Get(etcd.Client())(t)
		defer client.Close()
		s := must.Get(openStorage(t.Context(), client, prefix))(t)
		before := must.Get(s.revision(t.Context()))(t)
		must.Get(client.Put(t.Context(), "an-object", "x"))(t)
		after, err := s.revision(t.Context())
		is.True(t, err == nil && after == before+1, "the revision was %d and is %d after one write (%v)", before, after, err)
		return s.id, after
	}
	first, at := open(dir, "/registry/a")
	again, later := open(dir, "/registry/a")
	is.True(t, first == again && later > at, "storage %s at %d came back as %s at %d", first, at, again, later)
	is.True(t, storageID.MatchString(first), "--adopt-storage would refuse %q", first)
	for name, other := range map[string][2]string{
		"another folder": {t.TempDir(), "/registry/a"}, "another prefix": {dir, "/registry/b"},
	} {
		if id, _ := open(other[0], other[1]); id == first {
			t.Errorf("%s has the same identity", name)
		}
	}
}

func TestStorageThatWasReplaced(t *testing.T) {
	etcd := must.Get(embeddedetcd.Start(t.Context(),
		embeddedetcd.Options{DataDir: t.TempDir(), QuotaBytes: embeddedetcd.DefaultQuotaBytes}))(t)
	defer etcd.Stop()
	client := must.Get(etcd.Client())(t)
	defer client.Close()
	s := must.Get(openStorage(t.Context(), client, "/registry"))(t)
	must.Get(client.Delete(t.Context(), s.key))(t)
	if _, err := s.revision(t.Context()); err == nil {
		t.Error("an emptied storage passes for the old one")
	}
}

func TestSecondEmbeddedServerIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		// holder is the holder of the Lease; empty for none. skew is the deviation of the holder's
		// clock.
		holder string
		skew   time.Duration
		// renews is set if the holder renews the Lease; released is set if it releases the Lease
		// after a second.
		renews, released bool
		wantErr          bool
		// atMost is the maximum time in which the server must decide.
		atMost time.Duration
	}{
		"not where there is no Lease":        {},
		"not where it was the holder itself": {holder: "own"},
		"not where the holder has died":      {holder: "dead", atMost: 14 * time.Second},
		"not where the holder has died and its clock was fast": {
			holder: "dead", skew: time.Hour, atMost: 14 * time.Second,
		},
		"not where the holder leaves": {holder: "leaving", renews: true, released: true, atMost: 3 * time.Second},
		"where the holder renews":     {holder: "alive", renews: true, wantErr: true, atMost: 4 * time.Second},
		"where the holder renews and its clock is slow": {
			holder: "alive", skew: -time.Hour, renews: true, wantErr: true, atMost: 4 * time.Second,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			host := fake.NewClientset()
			leases := host.CoordinationV1().Leases("haulout-system")
			write := func(holder string) {
				seconds, now := int32(12), metav1.NewMicroTime(time.Now().Add(tc.skew))
				lease := &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "haulout-system", Name: "haulout-apiserver"},
					Spec: coordinationv1.LeaseSpec{
						HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now,
					},
				}
				if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
					_, _ = leases.Create(t.Context(), lease, metav1.CreateOptions{})
				}
			}
			ctx, end := context.WithCancel(t.Context())
			began := time.Now()
			if tc.holder != "" {
				write(tc.holder)
			}
			if tc.renews {
				go func() {
					for {
						select {
						case <-ctx.Done():
							return
						case <-time.After(2 * time.Second):
						}
						if tc.released {
							write("")
							return
						}
						write(tc.holder)
					}
				}()
			}
			err := parse(t).refuseSecondStorage(ctx, host.CoordinationV1(), "own")
			end()
			if (err != nil) != tc.wantErr || err != nil && !strings.Contains(err.Error(), tc.holder) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > tc.atMost {
				t.Errorf("it took %v, want at most %v", took, tc.atMost)
			}
		})
	}
}

// TestFullStorageIsOpened: a server must start on a storage without space, so that users can delete
// objects.
func TestFullStorageIsOpened(t *testing.T) {
	etcd := must.Get(embeddedetcd.Start(t.Context(), embeddedetcd.Options{DataDir: t.TempDir(), QuotaBytes: embeddedetcd.MinQuotaBytes}))(t)
	defer etcd.Stop()
	client := must.Get(etcd.Client())(t)
	defer client.Close()
	first := must.Get(openStorage(t.Context(), client, "/registry/a"))(t)
	var err error
	for i := 0; err == nil; i++ {
		_, err = client.Put(t.Context(), fmt.Sprint("object-", i), strings.Repeat("x", 1<<20))
	}
	is.True(t, errors.Is(err, rpctypes.ErrNoSpace), "got %v for a full storage", err)
	again := must.Get(openStorage(t.Context(), client, "/registry/a"))(t)
	is.Equal(t, again.id, first.id)
}
