/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/responsewriter"
)

// inProcess hands what this process asks of its own API to the handlers of the server, with all that they do for anybody else: authentication, audit,
// flow control, admission. What it saves is the way there and back over HTTP/2 and TLS, see docs/decisions/0015-own-requests.md.
type inProcess struct {
	handlers http.Handler
	serves   atomic.Bool
}

// attach takes the handlers of a server that is still to be made. They get requests from when it serves.
func (p *inProcess) attach(config *genericapiserver.Config) error {
	build := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		p.handlers = build(api, c)
		return p.handlers
	}
	return config.AddPostStartHook("own-requests-in-process", func(genericapiserver.PostStartHookContext) error {
		p.serves.Store(true)
		return nil
	})
}

// wrap returns a transport that takes another one for watches, whose answers do not end, and until the server serves.
func (p *inProcess) wrap(network http.RoundTripper) http.RoundTripper {
	return inProcessTransport{inProcess: p, network: network}
}

type inProcessTransport struct {
	*inProcess
	network http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t inProcessTransport) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	if !t.serves.Load() || req.URL.Query().Has("watch") {
		return t.network.RoundTrip(req)
	}
	// Of the caller's context the handlers get what the network would tell them: that it has ended. The values in it may be those of another request.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(req.Context(), cancel)()
	in := req.Clone(ctx)
	in.Host, in.RequestURI, in.RemoteAddr = req.URL.Host, req.URL.RequestURI(), "127.0.0.1:0"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	defer func() {
		_ = in.Body.Close()
		// A handler panics to break a connection off, be it that it has failed and written that to the log.
		if reason := recover(); reason != nil {
			resp, err = nil, fmt.Errorf("the server has given the request up: %v", reason)
		}
	}()
	w := responsewriter.NewInMemoryResponseWriter()
	t.handlers.ServeHTTP(w, in)
	if err := context.Cause(req.Context()); err != nil {
		return nil, err
	}
	code := w.RespCode()
	if code == 0 {
		code = http.StatusOK
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), StatusCode: code, Proto: req.Proto, ProtoMajor: req.ProtoMajor, ProtoMinor: req.ProtoMinor,
		Header: w.Header(), Body: io.NopCloser(bytes.NewReader(w.Data())), ContentLength: int64(len(w.Data())), Request: req,
	}, nil
}
