// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
)

// stopContainers ends the containers of a pod: it runs their preStop hooks, then stops all
// containers at the same time, except the sidecars. The runtime kills containers that do not end.
func (r *run) stopContainers(ctx context.Context, p *pod, until time.Time) error {
	ended := make([]chan struct{}, len(p.running))
	for i := range ended {
		ended[i] = make(chan struct{})
	}
	errs := make([]error, len(p.running))
	var containers sync.WaitGroup
	for i, c := range p.running {
		containers.Go(func() {
			// Close the channel even after a failure: the sidecars of a pod that cannot be ended
			// now must not wait for it.
			defer close(ended[i])
			r.preStop(ctx, p, c, until)
			for _, other := range p.waitsFor(c.name) {
				waitFor(ctx, ended[other], until)
			}
			if err := r.engine.runtime.stopContainer(ctx, c.id, stopTimeout(time.Until(until))); err != nil {
				errs[i] = fmt.Errorf("stop container %s: %w", c.name, err)
			}
		})
	}
	containers.Wait()
	return errors.Join(errs...)
}

// preStop runs the hook of a container once, within the time of the pod. As in the kubelet, a
// failed hook does not stop the end of the container.
func (r *run) preStop(ctx context.Context, p *pod, c container, until time.Time) {
	raw := c.annotations[annotationPreStop]
	if raw == "" || time.Until(until) <= 0 {
		return
	}
	r.mu.Lock()
	again := r.hooked[c.id]
	r.hooked[c.id] = true
	r.mu.Unlock()
	if again {
		return
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	logger := klog.FromContext(ctx)
	began := time.Now()
	err := r.engine.runtime.runHook(ctx, c, raw)
	if err != nil {
		// Do not log this by default: the error of a hook can contain secrets of the pod.
		logger.V(2).Info("PreStop hook failed", "pod", klog.KRef(p.namespace, p.name), "container", c.name, "err", err)
	}
	logger.V(1).Info("Ran preStop hook", "pod", klog.KRef(p.namespace, p.name), "container", c.name,
		"failed", err != nil, "took", time.Since(began).Round(time.Millisecond))
}

// stopSandboxes stops the sandboxes of a pod and removes its network. The pod counts as ended even
// if this fails: a network that needs the API server cannot be removed without it.
func (r *run) stopSandboxes(ctx context.Context, p *pod) {
	for _, id := range p.ready {
		err := r.engine.runtime.stopSandbox(ctx, id)
		if err == nil || status.Code(err) == codes.Unavailable || ctx.Err() != nil {
			continue
		}
		r.mu.Lock()
		r.untouchable[id] = true
		r.mu.Unlock()
		klog.FromContext(ctx).Error(err, "Sandbox of an ended pod was not stopped", "pod", klog.KRef(p.namespace, p.name), "sandbox", id)
	}
}

// stopTimeout returns the time between SIGTERM and SIGKILL, in whole seconds, as the runtime
// requires. It rounds, because a bucket of five seconds has 4.99 seconds left when its pods are
// stopped.
func stopTimeout(left time.Duration) time.Duration {
	return max(minimumGrace, left.Round(time.Second))
}

func wholeSeconds(d time.Duration) int64 {
	return max(1, int64(math.Ceil(d.Seconds())))
}

// wait sleeps for a duration. It returns false if the context ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitFor waits until a channel is closed, a time is reached, or the context ends.
func waitFor(ctx context.Context, done <-chan struct{}, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func earliest(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{a, b}, time.Time.Compare) }

// maxHookBytes is the maximum number of bytes that are read from the response to a hook.
const maxHookBytes = 10 << 10

// hookHTTP sends the hooks of kind httpGet. Like the kubelet, it does not check the certificate: it
// connects to the address of the container itself, and sends only secrets that are in the spec of
// that container.
var hookHTTP = &http.Client{Transport: &http.Transport{
	DisableKeepAlives: true,
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
}}

// runHook runs the preStop hook of a container, which the kubelet stored as an annotation. It
// returns when the hook or the context has ended.
func (c *client) runHook(ctx context.Context, container container, raw string) error {
	var handler corev1.LifecycleHandler
	if err := json.Unmarshal([]byte(raw), &handler); err != nil {
		return fmt.Errorf("annotation %s: %w", annotationPreStop, err)
	}
	switch {
	case handler.Exec != nil:
		return c.exec(ctx, container.id, handler.Exec.Command)
	case handler.HTTPGet != nil:
		return c.hookGet(ctx, container, handler.HTTPGet)
	case handler.Sleep != nil:
		if !wait(ctx, time.Duration(handler.Sleep.Seconds)*time.Second) {
			return context.Cause(ctx)
		}
		return nil
	}
	return errors.New("unknown handler: must be exec, httpGet or sleep")
}

func (c *client) hookGet(ctx context.Context, container container, get *corev1.HTTPGetAction) error {
	host := get.Host
	if host == "" {
		var err error
		if host, err = c.address(ctx, container.sandbox); err != nil {
			return err
		}
	}
	port, err := hookPort(get.Port, container.annotations[annotationPorts])
	if err != nil {
		return err
	}
	target, err := url.Parse(get.Path)
	if err != nil {
		target = &url.URL{Path: get.Path}
	}
	target.Scheme = "http"
	if get.Scheme != "" {
		target.Scheme = strings.ToLower(string(get.Scheme))
	}
	target.Host = net.JoinHostPort(host, strconv.Itoa(port))
	headers := hookHeaders(get.HTTPHeaders)
	err = send(ctx, target, headers)
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		// Older kubelets ignored the scheme, so the kubelet sends an HTTPS hook over HTTP if HTTPS
		// fails. Do not send the Authorization header in plain text.
		target.Scheme = "http"
		headers.Del("Authorization")
		err = send(ctx, target, headers)
	}
	return err
}

func send(ctx context.Context, target *url.URL, headers http.Header) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return err
	}
	request.Header, request.Host = headers, headers.Get("Host")
	answer, err := hookHTTP.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, maxHookBytes))
	return errors.Join(err, answer.Body.Close())
}

func hookHeaders(headers []corev1.HTTPHeader) http.Header {
	h := http.Header{}
	for _, own := range headers {
		h.Add(own.Name, own.Value)
	}
	for name, value := range map[string]string{"User-Agent": "haulout-node-agent", "Accept": "*/*"} {
		if _, found := h[name]; !found {
			h.Set(name, value)
		}
	}
	return h
}

// hookPort returns the number of a port, which can be the name of a port of the container.
func hookPort(port intstr.IntOrString, raw string) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String && number == 0 {
		var ports []corev1.ContainerPort
		if err := json.Unmarshal([]byte(raw), &ports); raw != "" && err != nil {
			return 0, fmt.Errorf("annotation %s: %w", annotationPorts, err)
		}
		for _, p := range ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("port %q: must be the name of a port of the container or 1 to 65535", port.String())
	}
	return number, nil
}
