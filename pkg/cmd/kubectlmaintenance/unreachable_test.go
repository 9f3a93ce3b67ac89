// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceclient "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// errConnectionRefused is the error of a request to an address that refuses connections.
var errConnectionRefused = &url.Error{Op: "Get", URL: "https://192.0.2.1:6443/apis?timeoutSeconds=417", Err: &net.OpError{
	Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6443}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED),
}}

// outage makes a server unreachable, and reachable again.
type outage struct {
	// silent is set if watches have no answer instead of an error, of which client-go makes an
	// empty watch.
	silent bool

	mu      sync.Mutex
	begun   bool
	watches []*watch.FakeWatcher
}

func newOutage(w *world, silent bool) *outage {
	o := &outage{silent: silent}
	w.haulout.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.begun, nil, errConnectionRefused
	})
	w.haulout.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case o.begun && o.silent:
			return true, watch.NewEmptyWatch(), nil
		case o.begun:
			return true, nil, errConnectionRefused
		}
		opened := watch.NewFake()
		o.watches = append(o.watches, opened)
		return true, opened, nil
	})
	return o
}

func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun = true
	for _, opened := range o.watches {
		opened.Stop()
	}
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun = false
}

// TestAnUnreachableServerIsNoted: the server refuses connections ten seconds after the beginning of
// a command that follows objects, and accepts them again half a minute later.
func TestAnUnreachableServerIsNoted(t *testing.T) {
	const note = "this may be out of date: the server has not answered since 10:00:10Z; retrying (dial tcp 192.0.2.1:6443: connect: connection refused)"
	// What the user sees in a pipe, in lines that are redrawn in place, and on the whole terminal.
	views := map[string]func(out string) string{
		"pipe":  func(out string) string { return out[strings.LastIndex(strings.TrimSuffix(out, "\n"), "\n")+1:] },
		"place": shown,
		"full":  func(out string) string { return strings.Join(frame(out), "\n") },
	}
	for name, test := range map[string]struct {
		line, view string
		// keys are pressed at the beginning.
		keys string
		// has is what the view shows beside the note.
		has    string
		silent bool
	}{
		"a wait in a pipe":               {line: "wait kernel-update", view: "pipe", has: "kernel-update: Draining"},
		"a status in a pipe":             {line: "status kernel-update --watch", view: "pipe", has: "kernel-update: Draining"},
		"a status of all in a pipe":      {line: "status --watch", view: "pipe", has: "kernel-update: Draining"},
		"a wait on a terminal":           {line: "wait kernel-update", view: "place", has: "kernel-update  Draining"},
		"a status on a terminal":         {line: "status kernel-update --watch", view: "place", has: "kernel-update  Draining"},
		"a table on a terminal":          {line: "status --watch", view: "place", has: "NAME "},
		"a status on the whole terminal": {line: "status kernel-update --watch", view: "full", has: "kernel-update  Draining"},
		"a table on the whole terminal":  {line: "status --watch", view: "full", has: "NAME "},
		"blockers on the whole terminal": {line: "status kernel-update --watch", view: "full", keys: "b", has: "PodDisruptionBudget: 2 pods"},
		"the last lines of the status":   {line: "status kernel-update --watch", view: "full", keys: "    ", has: "finalizers example.com/backup"},
		"watches without an answer":      {line: "status kernel-update --watch", view: "place", has: "kernel-update  Draining", silent: true},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, "", everything()...)
			start := time.Now()
			w.environment.now = func() time.Time { return now.Add(time.Since(start)) }
			keyboard, keys := io.Pipe()
			defer func() { must.Do(t, keys.Close()) }()
			if test.view != "pipe" {
				w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 160, 20) }
			}
			if test.view == "full" {
				w.environment.keyboard = func() (io.Reader, func()) { return keyboard, func() {} }
			}
			sees := func() string { return views[test.view](w.out.String()) }
			server := newOutage(w, test.silent)
			ctx, stop := context.WithCancel(t.Context())
			ended := w.background(ctx, strings.Fields(test.line)...)
			<-time.After(time.Second)
			if test.keys != "" {
				must.Get(io.WriteString(keys, test.keys))(t)
			}
			<-time.After(9 * time.Second)
			is.True(t, !strings.Contains(sees(), "out of date"), "before the outage, the user sees\n%s", sees())
			server.begin()
			<-time.After(30 * time.Second)
			is.True(t, strings.Contains(sees(), test.has), "during the outage, the user sees\n%s", sees())
			if test.view == "pipe" {
				is.True(t, strings.HasSuffix(sees(), "; "+note+"\n"), "during the outage, the last line is\n%s", sees())
				is.Equal(t, strings.Count(w.out.String(), note), 1, "lines with the note")
			} else {
				is.True(t, strings.HasPrefix(sees(), "note: "+note+"\n"), "during the outage, the user sees\n%s", sees())
			}
			server.end()
			<-time.After(2 * time.Minute) // client-go waits up to a minute
			is.True(t, strings.Contains(sees(), test.has) && !strings.Contains(sees(), "out of date"), "after the outage, the user sees\n%s", sees())
			stop()
			is.Equal(t, <-ended, exitInterrupted)
		})
	}
}

// silentClient reads Evacuations from a server that does not answer.
type silentClient struct{ clientset.Interface }

// MaintenanceV1alpha1 implements clientset.Interface.
func (c silentClient) MaintenanceV1alpha1() maintenanceclient.MaintenanceV1alpha1Interface {
	return silentGroup{c.Interface.MaintenanceV1alpha1()}
}

type silentGroup struct {
	maintenanceclient.MaintenanceV1alpha1Interface
}

// Evacuations implements maintenanceclient.EvacuationsGetter.
func (g silentGroup) Evacuations(namespace string) maintenanceclient.EvacuationInterface {
	return silentEvacuations{g.MaintenanceV1alpha1Interface.Evacuations(namespace)}
}

type silentEvacuations struct {
	maintenanceclient.EvacuationInterface
}

// Get implements maintenanceclient.EvacuationInterface.
func (silentEvacuations) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*v1alpha1.Evacuation, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestAReadWithoutAnAnswerIsNoted waits for an Evacuation whose reads hang.
func TestAReadWithoutAnAnswerIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", withPods()...)
		start := time.Now()
		w.environment.now = func() time.Time { return now.Add(time.Since(start)) }
		connect := w.environment.connect
		w.environment.connect = func() (clients, error) {
			c, err := connect()
			c.haulout = silentClient{c.haulout}
			return c, err
		}
		is.Equal(t, w.run(t.Context(), strings.Fields("evacuate far --namespace=shop --wait --timeout=1m")), exitTimeout)
		const line = "10:00:16Z  shop/far: Waiting; this may be out of date: the server has not answered since 10:00:01Z; retrying (context deadline exceeded)\n"
		is.True(t, strings.Contains(w.out.String(), line), "got\n%s", w.out)
	})
}

// TestReads has requests without an error, such as those to an address that drops packets.
func TestReads(t *testing.T) {
	var r reads
	is.Equal(t, r.note(now), "", "before the first request")
	r.begin(now)
	is.Equal(t, r.note(now.Add(answerWithin-1)), "", "soon after the request")
	is.Equal(t, r.note(now.Add(answerWithin)), "this may be out of date: the server has not answered since 10:00:00Z", "much later")
	r.end(errors.New("no"))
	r.begin(now.Add(time.Minute))
	is.Equal(t, r.note(now.Add(time.Minute)), "this may be out of date: the server has not answered since 10:00:00Z; retrying (no)", "after an error")
	r.end(nil)
	is.Equal(t, r.note(now.Add(time.Hour)), "", "after an answer")
}
