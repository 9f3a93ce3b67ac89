// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package informertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// firstVersion is higher than the resource versions of the initial objects of tests.
const firstVersion = 1000

// Versioned sets a new resource version of an object with each update and each merge patch, and
// refuses writes that are based on an older version. A fake cluster does not change versions.
// Without Versioned, a controller that compares them with its own last write would not notice that
// its cache is outdated, and its write of an outdated object would revert the writes of other
// clients.
func Versioned(t testing.TB, cluster interface {
	Cluster
	PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
},
) {
	t.Helper()
	// The cluster is locked while a reactor runs, so version needs no lock.
	version := firstVersion
	react := clienttesting.ObjectReaction(cluster.Tracker())
	// next returns the new version. It returns a conflict if the write is not based on the stored
	// version.
	next := func(action clienttesting.Action, name, from string) (string, error) {
		stored, err := cluster.Tracker().Get(action.GetResource(), action.GetNamespace(), name)
		if err != nil {
			return "", err
		}
		accessor, err := meta.Accessor(stored)
		if err != nil {
			return "", err
		}
		if from != "" && from != accessor.GetResourceVersion() {
			return "", apierrors.NewConflict(action.GetResource().GroupResource(), name, errors.New("it has changed"))
		}
		version++
		return strconv.Itoa(version), nil
	}
	cluster.PrependReactor("update", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		update := action.(clienttesting.UpdateActionImpl)
		object, err := meta.Accessor(update.Object)
		if err != nil {
			return true, nil, err
		}
		written, err := next(action, object.GetName(), object.GetResourceVersion())
		if err != nil {
			return true, nil, err
		}
		object.SetResourceVersion(written)
		return react(update)
	})
	cluster.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchActionImpl)
		if patch.PatchType != types.MergePatchType {
			return true, nil, fmt.Errorf("no versions for patches of type %s", patch.PatchType)
		}
		var body map[string]any
		if err := json.Unmarshal(patch.Patch, &body); err != nil {
			return true, nil, err
		}
		metadata, ok := body["metadata"].(map[string]any)
		if !ok {
			metadata = map[string]any{}
			body["metadata"] = metadata
		}
		from, _ := metadata["resourceVersion"].(string)
		written, err := next(action, patch.Name, from)
		if err != nil {
			return true, nil, err
		}
		metadata["resourceVersion"] = written
		if patch.Patch, err = json.Marshal(body); err != nil {
			return true, nil, err
		}
		return react(patch)
	})
}
