// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestCompatibility decodes the objects that earlier versions stored, in testdata, and compares
// them with those that this version would store. A change of testdata/HEAD that is more than an
// addition breaks stored objects. To regenerate it, set UPDATE_COMPATIBILITY_FIXTURE_DATA=true; for
// a release, copy it to testdata/v<version>.
func TestCompatibility(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	options := roundtrip.NewCompatibilityTestOptions(scheme)
	for _, kind := range []string{"NodeMaintenance", "NodeMaintenancePreview", "Evacuation", "NodeMaintenanceRollout", "NodeTask"} {
		options.Kinds = append(options.Kinds, schema.GroupVersionKind{
			Group: v1alpha1.SchemeGroupVersion.Group, Version: v1alpha1.SchemeGroupVersion.Version, Kind: kind,
		})
	}
	options.Complete(t).Run(t)
}

// TestPoolOfEarlierServers decodes field 11 of the status of a node, which earlier servers stored
// as a string, and later ones as an int32.
func TestPoolOfEarlierServers(t *testing.T) {
	const number, text = 11 << 3, 11<<3 | 2
	for _, test := range []struct {
		stored []byte
		json   string
	}{
		{stored: []byte{text, 4, 'b', 'l', 'u', 'e'}, json: `{"pool":"blue"}`},
		{stored: []byte{number, 1}, json: `{"pool":1}`},
	} {
		var fromProtobuf, fromJSON v1alpha1.NodeMaintenanceNodeStatus
		must.Do(t, fromProtobuf.Unmarshal(test.stored))
		must.Do(t, json.Unmarshal([]byte(test.json), &fromJSON))
		for _, got := range []v1alpha1.NodeMaintenanceNodeStatus{fromProtobuf, fromJSON} {
			is.True(t, got.PoolIndex == nil, "%s: got pool %v, want none", test.json, got.PoolIndex)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	roundtrip.RoundTripTestForAPIGroup(t, install.Install, fuzzFuncs)
}

func TestRoundTripProtobuf(t *testing.T) {
	roundtrip.RoundTripProtobufTestForAPIGroup(t, install.Install, fuzzFuncs)
}

// TestRoundTripPreview is separate, because a preview has no internal type.
func TestRoundTripPreview(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	filler := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, fuzzFuncs), nil, codecs)
	kind := v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenancePreview")
	roundtrip.RoundTripSpecificKind(t, kind, scheme, codecs, filler, nil)
}
