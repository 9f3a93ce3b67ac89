// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package noderights

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"haulout.dev/haulout/pkg/identity"
)

// ObjectsOf returns the new and the old object of a write; nil if there is none.
func ObjectsOf[T any](a admission.Attributes) (now, old *T, err error) {
	if now, err = as[T](a.GetObject()); err != nil {
		return nil, nil, err
	}
	old, err = as[T](a.GetOldObject())
	if err == nil && now == nil && old == nil {
		err = fmt.Errorf("%s without an object", a.GetOperation())
	}
	return now, old, err
}

func as[T any](obj runtime.Object) (*T, error) {
	if obj == nil {
		return nil, nil
	}
	typed, ok := any(obj).(*T)
	if !ok {
		return nil, fmt.Errorf("a %T is not a %T", obj, typed)
	}
	return typed, nil
}

// RemovesOwnFinalizers reports whether a user is the garbage collector, and changes no finalizer
// but its own, which it only removes.
func RemovesOwnFinalizers(u user.Info, now, old []string) bool {
	kept := slices.DeleteFunc(slices.Clone(old), func(f string) bool {
		own := f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
		return own && !slices.Contains(now, f)
	})
	return u.GetName() == identity.GarbageCollector && slices.Equal(now, kept)
}
