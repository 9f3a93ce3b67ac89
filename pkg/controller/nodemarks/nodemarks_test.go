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

package nodemarks

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestReadMarkOfInvalidAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		value string
		want  Mark
	}{
		"an annotation that is not JSON":  {`who knows`, Mark{}},
		"an annotation in another format": {`{"a/b":"x"}`, Mark{}},
		"invalid names of maintenances": {
			`{"storage":"s","maintenances":{"a/b":"x","..":"y","":"z"}}`, Mark{Storage: "s"},
		},
		"a maintenance without a UID": {`{"storage":"s","maintenances":{"m":""}}`, Mark{Storage: "s"}},
		"a valid name beside an invalid one": {
			`{"storage":"s","maintenances":{"m":"1","a/b":"x"}}`, Mark{Storage: "s", Maintenances: Owners{"m": "1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{v1alpha1.AnnotationCordonedBy: test.value},
			}}
			if got := Read(node, v1alpha1.AnnotationCordonedBy); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
