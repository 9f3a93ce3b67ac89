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

package evacuation

import (
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// quoteQueue copies the queue's message about a pod that waits and is not blocked. While an
// evacuator is active, the message belongs to the evacuator.
func (d *decision) quoteQueue(s situation) {
	if !d.evict || s.eviction.Message == "" || d.status.ActiveEvacuatorClass != maintenancev1alpha1.EvacuatorClassEviction {
		return
	}
	d.status.Message = wording.Cut(s.eviction.Message, maxMessage)
}
