// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"bytes"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestEtcdKeepsEachStorageApartAndInProtobuf(t *testing.T) {
	etcd := RunEtcd(t)
	resource := maintenance.Resource("nodemaintenances")
	ctx := t.Context()
	for _, reason := range []string{"first", "second"} {
		options := etcd.RESTOptions(resource)
		newFunc := func() runtime.Object { return &maintenance.NodeMaintenance{} }
		store, destroy, err := generic.UndecoratedStorage(options.StorageConfig, options.ResourcePrefix, nil, newFunc,
			func() runtime.Object { return &maintenance.NodeMaintenanceList{} }, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(destroy)
		in := &maintenance.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: "same"}, Spec: maintenance.NodeMaintenanceSpec{Reason: reason},
		}
		key := options.ResourcePrefix + "/same"
		must.Do(t, store.Create(ctx, key, in, &maintenance.NodeMaintenance{}, 0))
		out := &maintenance.NodeMaintenance{}
		must.Do(t, store.Get(ctx, key, storage.GetOptions{}, out))
		if out.Spec.Reason != reason || out.Spec.Stage != maintenance.NodeMaintenanceStageIdle {
			t.Errorf("read reason %q and stage %q, want %q and the default", out.Spec.Reason, out.Spec.Stage, reason)
		}
		if stored := etcd.StoredBytes(ctx, t, options, "same"); !bytes.HasPrefix(stored, []byte("k8s\x00")) {
			t.Errorf("stored bytes start with %q, want the protobuf magic", stored[:min(len(stored), 8)])
		}
	}
}

func TestRequestContext(t *testing.T) {
	ctx := Request{
		User: &user.DefaultInfo{Name: "ann"}, Verb: "update", Resource: "evacuations", Subresource: "status",
		Namespace: "blue", Name: "x",
	}.Context(t.Context())
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if want := "/apis/maintenance.haulout.dev/v1alpha1/namespaces/blue/evacuations/x/status"; !ok || info.Path != want {
		t.Errorf("path is %q, want %q", info.Path, want)
	}
	if u, ok := genericapirequest.UserFrom(ctx); !ok || u.GetName() != "ann" {
		t.Errorf("user is %v, want ann", u)
	}
	is.Equal(t, genericapirequest.NamespaceValue(ctx), "blue", "namespace")
}

func TestWithWarnings(t *testing.T) {
	ctx, warnings := WithWarnings(t.Context())
	warning.AddWarning(ctx, "", "careful")
	if got := warnings.Texts(); len(got) != 1 || got[0] != "careful" {
		t.Errorf("warnings are %q, want one", got)
	}
}
