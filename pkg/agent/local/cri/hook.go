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
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxHookBytes is the maximum number of bytes that are read from the response to a hook.
const maxHookBytes = 10 << 10

// hookHTTP sends the hooks of kind httpGet. Like the kubelet, it does not check the certificate: it
// uses the address of the container, and sends no secrets except those in the spec of that
// container.
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
		// Older kubelets ignored the scheme, and the kubelet still accepts such hooks. Do not send
		// the Authorization header in plain text.
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
