// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuator

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// errNotServed is the answer while no server serves the API.
var errNotServed = apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource.GroupResource(), name, "404 page not found", 0, true)

// TestAMissingAPICancelsNothing: the API is registered again while the handler reports.
func TestAMissingAPICancelsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, calls := make(chan struct{}), 0
		w := newWorld(t, func(ctx context.Context, e *Evacuation) error {
			if calls++; calls > 1 {
				return nil
			}
			<-begin
			return e.Report(ctx, Progress{Message: "flushing"})
		}, newEvacuationOf())
		w.untilWritten(`{}`)
		refuse := func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refuse = err
		}
		w.api.PrependReactor("get", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.refuse != nil, nil, w.refuse
		})
		refuse(errNotServed)
		time.AfterFunc(time.Minute, func() { refuse(nil) })
		close(begin)
		w.until("the end was reported", time.Second, func() bool {
			return slices.Contains(w.written(), `{"activeEvacuatorCompleted":true}`)
		})
		is.Equal(t, len(w.causes), 0, "ended contexts")
	})
}

// TestTheLastStateIsReadUntilItIsKnown: another class becomes active while the API is registered
// again, so the Evacuation leaves the watch of this class.
func TestTheLastStateIsReadUntilItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, untilEnd, newEvacuationOf())
		w.untilWritten(`{}`)
		reads := 0
		w.api.PrependReactor("get", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
			if reads++; reads <= 2 {
				return true, nil, errNotServed
			}
			return true, newEvacuationOf(turnOf("b.example.com")), nil
		})
		must.Do(t, w.api.Tracker().Delete(resource, "shop", name))
		w.wantCause(ErrTurnLost)
	})
}
