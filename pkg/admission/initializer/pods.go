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

package initializer

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// KnownPods exposes the pod cache of the controllers while this replica leads. The zero value has
// no pods. It is safe for concurrent use.
type KnownPods struct {
	lister atomic.Pointer[corelisters.PodLister]
}

// Set sets the cache of the controllers; nil removes it, which has to happen before its informer
// stops.
func (k *KnownPods) Set(lister corelisters.PodLister) {
	if lister == nil {
		k.lister.Store(nil)
		return
	}
	k.lister.Store(&lister)
}

// Get returns a pod with the fields that cache.Strip keeps, or nil if none with that name and UID
// is known. It must not be changed.
func (k *KnownPods) Get(namespace, name string, uid types.UID) *corev1.Pod {
	lister := k.lister.Load()
	if lister == nil {
		return nil
	}
	pod, err := (*lister).Pods(namespace).Get(name)
	if err != nil || pod.UID != uid {
		return nil
	}
	return pod
}

// WantsKnownPods is implemented by plugins that may use the pod cache of the controllers for
// requests of the server itself.
type WantsKnownPods interface {
	// SetKnownPods sets the pods.
	SetKnownPods(*KnownPods)
	admission.InitializationValidator
}
