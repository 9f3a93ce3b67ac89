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

package nodemaintenance

import (
	"context"

	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"haulout.dev/haulout/pkg/noderights"
)

// memory is what is remembered of one request. Admission runs within the storage transaction and again after each conflict: hundreds of
// questions and lists must not be repeated there.
type memory struct {
	decisions noderights.Answers
	look      lastLook
}

// remembered returns the memory of the request that ctx belongs to. What tells requests apart is the address of the RequestInfo that the
// handler chain has put there: unlike an audit ID no client can choose it. The cache holds it, so it cannot be another request's meanwhile.
func (p *Plugin) remembered(ctx context.Context) *memory {
	fresh := &memory{}
	request, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok {
		return fresh
	}
	if known, ok := p.requests.Get(request); ok {
		return known.(*memory)
	}
	p.requests.Add(request, fresh)
	return fresh
}
