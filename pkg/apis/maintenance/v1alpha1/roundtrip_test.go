// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"

	"haulout.dev/haulout/pkg/apis/maintenance/fuzzer"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
)

func TestRoundTrip(t *testing.T) {
	roundtrip.RoundTripTestForAPIGroup(t, install.Install, fuzzer.Funcs)
}

func TestRoundTripProtobuf(t *testing.T) {
	roundtrip.RoundTripProtobufTestForAPIGroup(t, install.Install, fuzzer.Funcs)
}
