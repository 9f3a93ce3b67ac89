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

package oracle

// Verdict judges what was recorded so far, given the names of the nodes that a user has
// cordoned.
func (r *Recorder) Verdict(rules Rules, cordoned ...string) ([]string, error) {
	calls, err := r.Calls()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return nil, r.failed
	}
	found, err := r.history.OutOfOrder(calls, rules)
	if err != nil {
		return nil, err
	}
	found = append(found, r.history.WentBack()...)
	found = append(found, r.history.NotPutBack(cordoned...)...)
	found = append(found, EvictedTwice(calls)...)
	if !rules.SeesLate {
		toClosed, _ := r.budgets.SentToClosed(calls)
		found = append(found, toClosed...)
	}
	if rules.Server != "" {
		unasked, err := r.history.Unasked(calls, rules.Server)
		if err != nil {
			return nil, err
		}
		found = append(found, unasked...)
	}
	found = append(found, r.history.LeftOver()...)
	if !rules.BudgetsMove {
		found = append(found, r.books.Broken()...)
	}
	return found, nil
}
